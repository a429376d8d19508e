// Compiling and making masks on an account of steps.
#include "grammar/work.h"

#include <gtest/gtest.h>

#include <random>

#include "grammar/constraint.h"

namespace lapidary::grammar {
namespace {

constexpr int32_t kStop = 256;

// Every byte, some words, a stop token.
CompileContext Context(std::shared_ptr<GrammarMemory> memory = nullptr) {
  static const auto vocabulary = [] {
    std::vector<std::string> bytes(257);
    for (int byte = 0; byte < 256; ++byte) bytes[byte] = std::string(1, static_cast<char>(byte));
    for (const char a : std::string("aAbBcC01:\"{}")) {
      for (const char b : std::string("aAbBcC01,\"")) {
        for (const char c : std::string("aAbBcC01 ")) bytes.push_back({a, b, c});
      }
    }
    return std::make_shared<TokenVocabulary>(bytes);
  }();
  CompileContext context{.vocabulary = vocabulary, .stop_tokens = {kStop}};
  context.memory = std::move(memory);
  return context;
}

Constraint Regex(std::string pattern) {
  return {.kind = Constraint::Kind::kRegex, .text = std::move(pattern)};
}

// Any letter may be followed by any that comes later, so states are many and large.
std::string LongPattern(int num_parts) {
  std::string pattern;
  for (int part = 0; part < num_parts; ++part) {
    const char letter = static_cast<char>('a' + part % 26);
    pattern += {'[', letter, static_cast<char>(letter - 32), ']', '*'};
  }
  return pattern;
}

std::string ManyMultiples(int num_fields) {
  std::string fields;
  for (int field = 0; field < num_fields; ++field) {
    fields += fmt::format(R"({}"f{}": {{"type": "integer", "multipleOf": {}}})",
                          field == 0 ? "" : ", ", field, 999'983 - field);
  }
  return R"({"type": "object", "properties": {)" + fields + "}}";
}

std::vector<uint32_t> MaskOf(Matcher& matcher, Work* work, Status* status) {
  std::vector<uint32_t> words(matcher.num_words());
  *status = matcher.FillMask(words, work);
  return words;
}

TEST(WorkTest, MasksMadeInShortTurnsAreThoseMadeAtOnce) {
  for (const std::string& pattern :
       {std::string("([ab]{1,40}c|a(b|c){2,9}){3,12}"), LongPattern(120),
        std::string("(?:a|b|[0-9]{3}){5,60}0?"), std::string("[^a]*a[^b]{9}b.*")}) {
    Matcher at_once(*Compile(Regex(pattern), Context()));
    Matcher in_turns(*Compile(Regex(pattern), Context()));
    std::mt19937 random(5);
    int num_late = 0;
    for (int token = 0; token < 25; ++token) {
      Status status;
      const std::vector<uint32_t> whole = MaskOf(at_once, nullptr, &status);
      ASSERT_TRUE(status.ok()) << status.error().message;
      // A turn twice as long as the last always ends.
      for (int64_t num_steps = 50;; num_steps *= 2) {
        Work work(num_steps);
        const std::vector<uint32_t> words = MaskOf(in_turns, &work, &status);
        if (status.ok()) {
          ASSERT_EQ(words, whole) << pattern << ", token " << token;
          break;
        }
        ASSERT_EQ(status.error().kind, ErrorKind::kBusy) << status.error().message;
        ++num_late;
      }
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < Context().vocabulary->num_tokens(); ++id) {
        if ((whole[id / 32] >> (id % 32) & 1) != 0 && id != kStop) allowed.push_back(id);
      }
      if (allowed.empty()) break;
      const int32_t id = allowed[random() % allowed.size()];
      ASSERT_TRUE(*at_once.Accept(id));
      Result<bool> accepted = false;
      for (int64_t num_steps = 1;; num_steps *= 2) {
        Work work(num_steps);
        accepted = in_turns.Accept(id, &work);
        if (accepted.ok()) break;
      }
      ASSERT_TRUE(*accepted);
    }
    EXPECT_GT(num_late, 3) << pattern;
  }
}

TEST(WorkTest, AnEmptyAccountIsBusyAndTheMatcherStandsWhereItStood) {
  Matcher matcher(*Compile(Regex(LongPattern(26)), Context()));
  Work none(0);
  std::vector<uint32_t> words(matcher.num_words());
  EXPECT_EQ(matcher.FillMask(words, &none).error().kind, ErrorKind::kBusy);
  EXPECT_EQ(matcher.Accept('c', &none).error().kind, ErrorKind::kBusy);
  EXPECT_EQ(matcher.num_accepted(), 0);
  EXPECT_TRUE(*matcher.Accept('c'));
  EXPECT_FALSE(*matcher.Accept('a'));
}

TEST(WorkTest, AMaskOfFortyKilobytesOfPatternTakesNoMoreThanItsAccount) {
  const auto compiled = Compile(Regex(LongPattern(8'000)), Context());
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  Matcher matcher(*compiled);
  for (const int64_t num_steps : {1'000, 100'000, 10'000'000}) {
    Work work(num_steps);
    Status status;
    MaskOf(matcher, &work, &status);
    EXPECT_FALSE(status.ok()) << num_steps;
    // One piece of work more, which may go through all parts of the pattern.
    EXPECT_LT(work.num_done(), num_steps + 100'000);
  }
}

TEST(WorkTest, CompilingTakesNoMoreThanItsAccount) {
  const Constraint constraint = {.kind = Constraint::Kind::kJsonSchema, .text = ManyMultiples(20)};
  Work work(1'000);
  const auto compiled = Compile(constraint, Context(), &work);
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.error().kind, ErrorKind::kBusy);
  EXPECT_LT(work.num_done(), 10'000);
}

TEST(WorkTest, WorkThatIsStoppedEndsSoon) {
  std::atomic<bool> stop{true};
  Work work(int64_t{1} << 40, &stop);
  const auto compiled =
      Compile({.kind = Constraint::Kind::kJsonSchema, .text = ManyMultiples(20)}, Context(), &work);
  EXPECT_FALSE(compiled.ok());
  Matcher matcher(*Compile(Regex(LongPattern(500)), Context()));
  Work masks(int64_t{1} << 40, &stop);
  Status status;
  MaskOf(matcher, &masks, &status);
  EXPECT_EQ(status.error().kind, ErrorKind::kBusy);
}

TEST(WorkTest, WhoeverHoldsAnAutomatonDoesNotHoldUpAnAccount) {
  std::mutex held;
  held.lock();
  Work work(10 * Work::kStepsPerMillisecond);
  EXPECT_FALSE(work.Lock(held));
  EXPECT_LE(work.num_done(), 0) << "waiting is no work";
  held.unlock();
  Work more(10);
  EXPECT_TRUE(more.Lock(held));
  held.unlock();
}

TEST(WorkTest, GrammarsCountTheirBytesAndShareALimit) {
  const auto memory = std::make_shared<GrammarMemory>();
  {
    const auto compiled = *Compile(Regex(LongPattern(300)), Context(memory));
    const size_t at_first = memory->num_bytes;
    EXPECT_EQ(at_first, compiled->num_bytes());
    Matcher matcher(compiled);
    Status status;
    MaskOf(matcher, nullptr, &status);
    ASSERT_TRUE(status.ok());
    EXPECT_GT(memory->num_bytes, at_first);
    EXPECT_EQ(memory->num_bytes, compiled->num_bytes());
    const auto other = *Compile(Regex("a[bc]d"), Context(memory));
    EXPECT_EQ(memory->num_bytes, compiled->num_bytes() + other->num_bytes());
    memory->max_bytes = memory->num_bytes - 1;
    Matcher late(other);
    MaskOf(late, nullptr, &status);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().kind, ErrorKind::kInvalid);
    MaskOf(matcher, nullptr, &status);
    EXPECT_TRUE(status.ok()) << "what is known needs no memory";
  }
  EXPECT_EQ(memory->num_bytes, 0u);
}

}  // namespace
}  // namespace lapidary::grammar
