#include "executor/simulated/step_timings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/presets.h"

namespace lapidary::simulated {
namespace {

ModelPlan PlanOf(const std::string& preset) {
  return MakeModelPlan(ParseModelConfig(PresetConfig(preset).value(), preset).value()).value();
}

const ModelTimings& TimingsOf(const std::string& preset) {
  return **FindTimings(**FindCard("h200"), PlanOf(preset));
}

// What docs/performance.md and docs/lab/2026-11-step-time.md have of an H200, the middle of a range
// where they give one.
struct MeasuredStep {
  const char* preset;
  int num_sequences;
  int context;
  double ms;
};
constexpr MeasuredStep kDecodes[] = {
    {"e2b", 1, 1000, 1.56},      {"e2b", 1, 100'000, 2.37},    {"e2b", 8, 1000, 2.165},
    {"e2b", 80, 1000, 3.32},     {"e2b", 100, 1000, 4.01},     {"e2b", 100, 768, 3.71},
    {"e4b", 1, 1000, 2.76},      {"e4b", 8, 1000, 3.93},       {"e4b", 80, 1000, 5.69},
    {"e4b", 100, 1000, 6.10},    {"e4b", 100, 768, 6.15},      {"12b", 1, 1000, 6.32},
    {"12b", 1, 128'000, 6.96},   {"12b", 80, 1000, 14.55},     {"12b", 100, 1000, 17.0},
    {"12b", 100, 768, 15.6},     {"26b-a4b", 1, 1000, 2.35},   {"26b-a4b", 1, 128'000, 2.89},
    {"26b-a4b", 8, 1000, 6.73},  {"26b-a4b", 32, 1500, 12.98}, {"26b-a4b", 80, 1500, 17.45},
    {"26b-a4b", 100, 768, 18.2}, {"31b", 1, 1000, 15.68},      {"31b", 1, 128'000, 17.72},
    {"31b", 64, 1000, 31.7},
};

TEST(StepTimings, DecodeStepsTakeWhatTheyTookOnTheCard) {
  for (const MeasuredStep& measured : kDecodes) {
    const int32_t window = PlanOf(measured.preset).kv_groups[kSlidingGroup].window;
    StepWork work;
    for (int idx = 0; idx < measured.num_sequences; ++idx) {
      work.AddDecode(measured.context, window);
    }
    const double ms = TimingsOf(measured.preset).Milliseconds(work);
    EXPECT_NEAR(ms / measured.ms, 1.0, 0.08)
        << measured.preset << ", " << measured.num_sequences << " x " << measured.context << ": "
        << ms << " of " << measured.ms;
  }
}

// One prompt in one step, tokens a second. A sum of two terms is further from these: kernels change
// with the number of rows.
struct MeasuredPrompt {
  const char* preset;
  int num_rows;
  double tokens_per_s;
};
constexpr MeasuredPrompt kPrompts[] = {
    {"e2b", 8192, 356'500}, {"e2b", 1000, 218'000},    {"e4b", 8192, 120'700},
    {"e4b", 1000, 90'800},  {"12b", 8192, 27'300},     {"12b", 1000, 25'600},
    {"31b", 8192, 10'245},  {"26b-a4b", 8192, 65'800}, {"26b-a4b", 1000, 31'200},
    {"31b", 1000, 9'850},   {"26b-a4b", 2048, 54'600},
};

TEST(StepTimings, PromptsTakeWhatTheyTookOnTheCard) {
  for (const MeasuredPrompt& measured : kPrompts) {
    StepWork work;
    work.AddPrompt(measured.num_rows, 0);
    const double expected_ms = 1e3 * measured.num_rows / measured.tokens_per_s;
    const double ms = TimingsOf(measured.preset).Milliseconds(work);
    EXPECT_NEAR(ms / expected_ms, 1.0, 0.18)
        << measured.preset << ", " << measured.num_rows << ": " << ms << " of " << expected_ms;
  }
}

TEST(StepTimings, ABatchIsTheSumOfItsSequences) {
  StepBatch batch;
  batch.sequences = {{.num_cached = 700, .num_rows = 1}, {.num_cached = 100, .num_rows = 50}};
  const StepWork work = WorkOf(batch, 512);
  EXPECT_EQ(work.num_decode_rows, 1);
  EXPECT_EQ(work.num_decode_keys, 700.0);
  EXPECT_EQ(work.num_window_keys, 512.0);
  EXPECT_EQ(work.num_prompt_rows, 50);
  EXPECT_EQ(work.num_prompt_keys, 50 * 125.0);
}

TEST(StepTimings, AStepOfNothingTakesNoTime) { EXPECT_EQ(TimingsOf("e2b").Milliseconds({}), 0.0); }

TEST(StepTimings, OtherCardsAndModelsAreRefusedByName) {
  const auto card = FindCard("b200");
  ASSERT_FALSE(card.ok());
  EXPECT_THAT(card.error().message, testing::HasSubstr("measured on h200 only"));
  const auto timings = FindTimings(**FindCard("h200"), PlanOf("tiny-e"));
  ASSERT_FALSE(timings.ok());
  EXPECT_THAT(timings.error().message, testing::HasSubstr("only those of e2b, e4b, 12b"));
}

}  // namespace
}  // namespace lapidary::simulated
