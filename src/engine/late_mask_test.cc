// Masks that steps do not wait for change when an answer is computed, never what it says.
#include <gtest/gtest.h>

#include <future>

#include "engine/engine.h"
#include "engine/fake_executor.h"
#include "executor/cpu/cpu_executor.h"
#include "grammar/constraint.h"
#include "model/presets.h"
#include "model/tensor_sources.h"

namespace lapidary {
namespace {

using grammar::Constraint;

constexpr int32_t kStop = 1;
constexpr int32_t kFirstByte = 10;  // the token of byte 0

const ModelPlan& Plan() {
  static const ModelPlan plan =
      MakeModelPlan(ParseModelConfig(*PresetConfig("tiny-e"), "tiny-e").value()).value();
  return plan;
}

// With `spells`, text that must come is known in tokens, and drafted.
std::shared_ptr<const grammar::CompiledGrammar> Compiled(const std::string& pattern, bool spells) {
  static const auto vocabulary = [] {
    std::vector<std::string> bytes(Plan().vocab_size);
    for (int byte = 0; byte < 256; ++byte) {
      bytes[kFirstByte + byte] = std::string(1, static_cast<char>(byte));
    }
    return std::make_shared<grammar::TokenVocabulary>(std::move(bytes));
  }();
  grammar::CompileContext context{.vocabulary = vocabulary, .stop_tokens = {kStop}};
  if (spells) {
    context.spell = [](std::string_view text) {
      std::vector<int32_t> ids;
      for (const char byte : text) ids.push_back(kFirstByte + static_cast<uint8_t>(byte));
      return ids;
    };
  }
  return *grammar::Compile({.kind = Constraint::Kind::kRegex, .text = pattern}, context);
}

struct Answer {
  std::vector<int32_t> tokens;
  RequestEvent last;
  bool operator==(const Answer& other) const { return tokens == other.tokens; }
};

std::vector<Answer> Ask(Engine& engine, const std::vector<SequenceSpec>& specs) {
  std::deque<std::promise<Answer>> promises(specs.size());
  std::deque<Answer> answers(specs.size());
  for (size_t idx = 0; idx < specs.size(); ++idx) {
    const auto id = engine.Submit(specs[idx], [&, idx](RequestEvent event) {
      for (const SampledToken& token : event.tokens) answers[idx].tokens.push_back(token.id);
      if (!event.finish) return;
      answers[idx].last = std::move(event);
      promises[idx].set_value(answers[idx]);
    });
    EXPECT_TRUE(id.ok()) << id.error().message;
  }
  std::vector<Answer> all;
  for (auto& promise : promises) all.push_back(promise.get_future().get());
  return all;
}

std::vector<SequenceSpec> Specs(bool spells) {
  const std::vector<std::string> patterns = {"(record[a-f]of){3,8}", "[a-z]{20,60}",
                                             "((ab|cd)*[ef]{2,5}){4,9}", ".{5,40}"};
  std::vector<SequenceSpec> specs;
  for (int idx = 0; idx < 12; ++idx) {
    SequenceSpec& spec = specs.emplace_back();
    for (int token = 0; token < 5 + 3 * idx; ++token) {
      spec.prompt.push_back((7 * idx + 13 * token) % Plan().vocab_size);
    }
    spec.max_new_tokens = 50;
    spec.stop_ids = {kStop};
    SamplingParams sampling;
    sampling.temperature = idx % 3 == 0 ? 0.0f : 1.5f;
    sampling.seed = 100 + idx;
    spec.sampling = std::make_shared<SamplingParams>(sampling);
    // A grammar of its own, so that none finds another's masks.
    if (idx % 6 != 5) spec.grammar = Compiled(patterns[idx % patterns.size()], spells);
  }
  return specs;
}

std::unique_ptr<Engine> CpuEngine(bool overlap, int64_t mask_steps, int num_pages) {
  ThreadPool threads(2);
  cpu::CpuExecutorOptions executor;
  executor.num_threads = 2;
  executor.num_pages = num_pages;
  executor.kv_layout = MakeKvLayout(Plan(), KvFormat::kF32, {4, 8});
  executor.mask_steps = mask_steps;
  EngineOptions options;
  options.overlap = overlap;
  options.check_kv = true;
  options.limits.num_forced_drafts = kMaxDrafts;
  return std::make_unique<Engine>(
      cpu::CpuExecutor::Create(Plan(), DummySource::Make(Plan(), /*seed=*/5, threads).value(),
                               executor)
          .value(),
      options);
}

TEST(LateMaskTest, AnswersAreTheSameHoweverManyMasksAreLate) {
  const std::vector<Answer> expected =
      Ask(*CpuEngine(/*overlap=*/false, kMaskStepsPerThread, 800), Specs(/*spells=*/false));
  for (const bool spells : {false, true}) {
    for (const Answer& answer : expected) ASSERT_NE(answer.last.finish, FinishReason::kError);
    for (const bool overlap : {false, true}) {
      for (const int num_pages : {800, 60}) {
        // With no steps at all every mask that is new is late.
        const int64_t mask_steps = num_pages == 60 && !overlap ? 2'000 : 0;
        const auto engine = CpuEngine(overlap, mask_steps, num_pages);
        EXPECT_EQ(Ask(*engine, Specs(spells)), expected)
            << "overlap " << overlap << ", pages " << num_pages << ", steps " << mask_steps;
        EXPECT_EQ(engine->stats().scheduler.num_late, 0);
      }
    }
  }
}

TEST(LateMaskTest, DraftedAnswersAreTheSameHoweverManyMasksAreLate) {
  const auto ask = [&](int num_drafts, int64_t mask_steps) {
    const KvLayout layout = MakeKvLayout(Plan(), KvFormat::kF32, {4, 8});
    auto executor = std::make_unique<FakeExecutor>(Plan(), layout, 900);
    FakeExecutor& fake = *executor;
    fake.set_mask_steps(mask_steps);
    EngineOptions options;
    options.limits.num_drafts = num_drafts;
    options.check_kv = true;
    Engine engine(std::move(executor), options);
    std::vector<Answer> answers = Ask(engine, Specs(/*spells=*/false));
    EXPECT_EQ(fake.num_late() > 0, mask_steps == 0);
    return answers;
  };
  const std::vector<Answer> expected = ask(0, kMaskStepsPerThread);
  EXPECT_EQ(ask(0, 0), expected);
  EXPECT_EQ(ask(5, kMaskStepsPerThread), expected);
  EXPECT_EQ(ask(5, 0), expected);
}

// `[aA]*[bB]*...`: each new mask takes millions of steps.
std::string HostilePattern() {
  std::string pattern;
  for (int part = 0; part < 8'000; ++part) {
    pattern +=
        {'[', static_cast<char>('a' + part % 26), static_cast<char>('A' + part % 26), ']', '*'};
  }
  return pattern;
}

TEST(LateMaskTest, OthersHaveTheirAnswersBesideMasksThatTakeLong) {
  const auto engine = CpuEngine(/*overlap=*/true, kMaskStepsPerThread, 800);
  std::vector<SequenceSpec> specs = Specs(/*spells=*/false);
  SequenceSpec hostile = specs[0];
  hostile.grammar = Compiled(HostilePattern(), false);
  std::promise<RequestEvent> ended;
  const auto id = engine->Submit(hostile, [&](RequestEvent event) {
    if (event.finish) ended.set_value(std::move(event));
  });
  ASSERT_TRUE(id.ok());
  while (engine->stats().scheduler.num_late == 0) std::this_thread::yield();
  for (const Answer& answer : Ask(*engine, specs)) {
    EXPECT_NE(answer.last.finish, FinishReason::kError) << answer.last.error;
  }
  engine->Cancel(*id);
  EXPECT_TRUE(ended.get_future().get().finish.has_value());
}

TEST(LateMaskTest, AnEngineEndsWhileAMaskIsMade) {
  const auto engine = CpuEngine(/*overlap=*/true, kMaskStepsPerThread, 800);
  SequenceSpec hostile = Specs(/*spells=*/false)[0];
  hostile.grammar = Compiled(HostilePattern(), false);
  ASSERT_TRUE(engine->Submit(hostile, [](const RequestEvent&) {}).ok());
  while (engine->stats().scheduler.num_late == 0) std::this_thread::yield();
}

}  // namespace
}  // namespace lapidary
