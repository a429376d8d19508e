// A JSON Schema from anywhere gives masks or an error, within the work and the memory it may take,
// and every walk through its masks says JSON.
//
// The input is the schema, a zero byte, and the walk: each byte picks a token of the mask and what
// the turns may take in which the mask is made. Masks made in turns must be those made at once; a
// token is accepted if and only if its bit is set.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "grammar/constraint.h"
#include "grammar/json_value.h"

namespace {

using lapidary::ErrorKind;
using lapidary::Status;
using lapidary::grammar::Automaton;
using lapidary::grammar::CompileContext;
using lapidary::grammar::CompiledGrammar;
using lapidary::grammar::Constraint;
using lapidary::grammar::GrammarMemory;
using lapidary::grammar::Matcher;
using lapidary::grammar::TokenVocabulary;
using lapidary::grammar::Work;

constexpr int32_t kStop = 256;
constexpr size_t kMaxSchemaBytes = 4096;
constexpr size_t kMaxWalk = 48;
constexpr int64_t kMaxSteps = 60 * Work::kStepsPerMillisecond;

// Every byte, a stop token, and texts as a tokenizer has them.
const CompileContext& Context() {
  static const CompileContext context = [] {
    std::vector<std::string> bytes(kStop + 1);
    for (int byte = 0; byte < 256; ++byte) bytes[byte] = std::string(1, static_cast<char>(byte));
    for (const char* text :
         {"{\"",   "\":",  "\": ", "\", \"",   "\"}",          "{}",       "[]",
          "], [",  "},",   "  ",   "\n  ",     "true",         "false",    "null",
          "ab",    "abc",  "name", "item",     " and",         " x",       "the ",
          "00",    "12",   "123",  "1.",       "0.5",          "-1",       "e+",
          "\\u",   "\\n",  "\\\"", "\xC3\xA9", "\xE2\x82\xAC", "\xE2\x82", "\xF0\x9F\x98\x80",
          "2024-", "-01-", "T00:", "https://", "@a."}) {
      bytes.push_back(text);
    }
    return CompileContext{.vocabulary = std::make_shared<TokenVocabulary>(bytes),
                          .stop_tokens = {kStop}};
  }();
  return context;
}

bool Has(const std::vector<uint32_t>& words, int32_t token) {
  return (words[token / 32] >> (token % 32) & 1) != 0;
}

// In turns, each twice as long as the one before, as the engine makes masks that are late.
Status FillInTurns(Matcher& matcher, int64_t turn_steps, std::vector<uint32_t>* words) {
  for (; turn_steps < kMaxSteps; turn_steps *= 2) {
    Work work(turn_steps);
    Status status = matcher.FillMask(*words, &work);
    if (status.ok() || status.error().kind != ErrorKind::kBusy) return status;
  }
  return lapidary::MakeError("too long");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  if (end > kMaxSchemaBytes) return 0;
  CompileContext context = Context();
  context.memory = std::make_shared<GrammarMemory>();
  const Constraint constraint = {.kind = Constraint::Kind::kJsonSchema,
                                 .text = std::string(input.substr(0, end))};
  Work compiling(kMaxSteps);
  const auto compiled = lapidary::grammar::Compile(constraint, context, &compiling);
  CHECK(compiled.ok() || !compiled.error().message.empty());
  CHECK_LT(compiling.num_done(), kMaxSteps + kMaxSteps / 2);
  if (!compiled.ok()) return 0;
  const int32_t num_tokens = context.vocabulary->num_tokens();
  Matcher matcher(*compiled);
  // It has states of its own, made at once.
  const auto again = lapidary::grammar::Compile(constraint, Context());
  CHECK(again.ok());
  Matcher at_once(*again);
  std::vector<uint32_t> words(context.vocabulary->num_words());
  std::vector<uint32_t> expected(words.size());
  std::string text;
  for (size_t at = end + 1; at < std::min(size, end + 1 + kMaxWalk); ++at) {
    const uint8_t choice = data[at];
    const Status filled = FillInTurns(matcher, int64_t{16} << choice % 8, &words);
    CHECK_EQ(context.memory->num_bytes.load(), (*compiled)->num_bytes());
    CHECK_LT((*compiled)->num_bytes(), 3 * Automaton::kMaxBytes);
    if (!filled.ok()) return 0;
    if (!at_once.FillMask(expected).ok()) return 0;
    CHECK(words == expected);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < num_tokens; ++token) {
      if (Has(words, token)) allowed.push_back(token);
    }
    CHECK(!allowed.empty());  // a live state always has a way on
    const int32_t other = (choice * 37 + static_cast<int32_t>(at)) % num_tokens;
    const auto accepts_other = at_once.Accept(other);
    if (!accepts_other.ok()) return 0;
    CHECK_EQ(*accepts_other, Has(words, other));
    if (*accepts_other) at_once.Rollback(1);
    // A text that may end does so at times, or walks would be of numbers and blanks.
    const bool may_end = Has(words, kStop) && choice % 4 == 0;
    const int32_t token = may_end ? kStop : allowed[choice % allowed.size()];
    const auto accepted = matcher.Accept(token);
    const auto accepted_too = at_once.Accept(token);
    if (!accepted.ok() || !accepted_too.ok()) return 0;
    CHECK(*accepted && *accepted_too);
    if (token == kStop) {
      const auto json = lapidary::grammar::ParseJson(text, "the text");
      CHECK(json.ok()) << json.error().message << ": " << text;
      return 0;
    }
    text += context.vocabulary->BytesOf(token);
  }
  return 0;
}
