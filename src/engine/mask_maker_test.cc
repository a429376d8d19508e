#include "engine/mask_maker.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>

#include "grammar/constraint.h"

namespace lapidary {
namespace {

using grammar::Constraint;

std::shared_ptr<const grammar::CompiledGrammar> Regex(const std::string& pattern) {
  std::vector<std::string> bytes(257);
  for (int byte = 0; byte < 256; ++byte) bytes[byte] = std::string(1, static_cast<char>(byte));
  return *grammar::Compile(
      {.kind = Constraint::Kind::kRegex, .text = pattern},
      {.vocabulary = std::make_shared<grammar::TokenVocabulary>(bytes), .stop_tokens = {256}});
}

// Takes more than half a million steps for its first mask.
std::string SlowPattern() {
  std::string pattern;
  for (int part = 0; part < 1'500; ++part) {
    pattern +=
        {'[', static_cast<char>('a' + part % 26), static_cast<char>('A' + part % 26), ']', '*'};
  }
  return pattern;
}

// What was made, in order.
class Made {
 public:
  std::function<void(MadeMask)> sink() {
    return [this](MadeMask made) {
      const std::lock_guard lock(mutex_);
      all_.push_back(std::move(made));
      changed_.notify_all();
    };
  }
  std::vector<MadeMask> Wait(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return all_.size() >= count; });
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MadeMask> all_;
};

constexpr int64_t kMaxSteps = grammar::Work::kMaxMaskSteps;

TEST(MaskMakerTest, AMadeMaskIsThereAtOnceBehindTheOutputs) {
  Made made;
  MaskMaker maker(1, made.sink());
  const auto regex = Regex("a(b|cd){2,3}");
  maker.Start({.id = 7, .grammar = regex, .outputs = {'a', 'b', 'c'}, .max_steps = kMaxSteps});
  const MadeMask mask = made.Wait(1)[0];
  EXPECT_EQ(mask.id, 7u);
  ASSERT_TRUE(mask.status.ok()) << mask.status.error().message;
  EXPECT_GT(mask.num_steps, 0);
  grammar::Matcher matcher = *mask.matcher;
  ASSERT_EQ(matcher.num_accepted(), 3);
  grammar::Work none(0);
  std::vector<uint32_t> words(matcher.num_words());
  ASSERT_TRUE(matcher.FillMask(words, &none).ok());
  EXPECT_EQ(words['d' / 32], 1u << ('d' % 32));
}

// A sink whose first call ends when the gate is opened: what is started meanwhile waits in line.
class Gate {
 public:
  std::function<void(MadeMask)> Before(std::function<void(MadeMask)> sink) {
    return [sink = std::move(sink), opened = open_.get_future().share()](MadeMask made) {
      opened.wait();
      sink(std::move(made));
    };
  }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> open_;
};

TEST(MaskMakerTest, AMaskThatTakesLongHoldsUpNoneThatDoesNot) {
  Made made;
  Gate gate;
  MaskMaker maker(1, gate.Before(made.sink()), /*first_turn_steps=*/10'000);
  maker.Start({.id = 9, .grammar = Regex("ab"), .outputs = {}, .max_steps = kMaxSteps});
  maker.Start({.id = 1, .grammar = Regex(SlowPattern()), .outputs = {}, .max_steps = kMaxSteps});
  for (SequenceId id = 2; id < 6; ++id) {
    maker.Start({.id = id, .grammar = Regex("[ab]*"), .outputs = {}, .max_steps = kMaxSteps});
  }
  gate.Open();
  const std::vector<MadeMask> all = made.Wait(6);
  EXPECT_EQ(all.front().id, 9u);
  EXPECT_EQ(all.back().id, 1u);
  EXPECT_TRUE(all.back().status.ok()) << all.back().status.error().message;
  EXPECT_GT(all.back().num_steps, 300'000);
}

TEST(MaskMakerTest, AMaskBeyondItsStepsIsAnErrorOfTheRequest) {
  Made made;
  MaskMaker maker(1, made.sink(), /*first_turn_steps=*/10'000);
  maker.Start({.id = 1, .grammar = Regex(SlowPattern()), .outputs = {}, .max_steps = 200'000});
  const MadeMask mask = made.Wait(1)[0];
  ASSERT_FALSE(mask.status.ok());
  EXPECT_EQ(mask.status.error().kind, ErrorKind::kInvalid);
  EXPECT_NE(mask.status.error().message.find("too long"), std::string::npos);
}

TEST(MaskMakerTest, ACancelledJobEndsAndIsNotToldOf) {
  Made made;
  Gate gate;
  MaskMaker maker(1, gate.Before(made.sink()));
  maker.Start({.id = 1, .grammar = Regex("ab"), .outputs = {}, .max_steps = kMaxSteps});
  maker.Start(
      {.id = 2, .grammar = Regex(SlowPattern()), .outputs = {}, .max_steps = int64_t{1} << 50});
  maker.Start({.id = 3, .grammar = Regex("ab"), .outputs = {}, .max_steps = kMaxSteps});
  maker.Cancel(2);
  maker.Cancel(99);
  gate.Open();
  const std::vector<MadeMask> all = made.Wait(2);
  EXPECT_EQ(all[0].id, 1u);
  EXPECT_EQ(all[1].id, 3u);
  maker.Start(
      {.id = 4, .grammar = Regex(SlowPattern()), .outputs = {}, .max_steps = int64_t{1} << 50});
}  // and the maker ends without it

}  // namespace
}  // namespace lapidary
