#include "executor/simulated/simulated_executor.h"

#include <gtest/gtest.h>

#include "model/presets.h"

namespace lapidary::simulated {
namespace {

// One sequence in one slot, its pages in order from page 1 on; 4 tokens to a page.
class SimulatedExecutorTest : public testing::Test {
 protected:
  static constexpr int kPageTokens = 4;

  static ModelPlan Plan() {
    return MakeModelPlan(ParseModelConfig(PresetConfig("tiny-e").value(), "tiny-e").value())
        .value();
  }

  SimulatedExecutorOptions Options() {
    SimulatedExecutorOptions options;
    options.kv_layout = MakeKvLayout(Plan(), KvFormat::kBF16, {4, kPageTokens});
    options.num_pages = 64;
    options.timings.one_row = 2.0;
    options.timings.floor = 5.0;
    options.timings.prompt_row = 1.0;
    options.vocabulary.size = Plan().vocab_size;
    options.clock = clock_;
    return options;
  }

  // Rows of slot 0 behind `num_cached` tokens, a token sampled behind them.
  static StepBatch Step(std::vector<int32_t> ids, int32_t num_cached, PageIndex first_page = 1) {
    StepBatch batch;
    const auto num_rows = static_cast<int32_t>(ids.size());
    if (num_cached == 0) {
      batch.bindings.push_back(
          {.slot = 0, .sampling = std::make_shared<SamplingParams>(), .prompt_len = num_rows});
    }
    for (int32_t position = 0; position < num_cached + num_rows; position += kPageTokens) {
      const int32_t block = position / kPageTokens;
      batch.table_entries.push_back(
          {.group_idx = kFullGroup, .block = block, .page = first_page + block});
    }
    batch.token_ids = std::move(ids);
    batch.sequences.push_back(
        {.num_cached = num_cached, .num_rows = num_rows, .num_outputs = 1, .samples = true});
    return batch;
  }

  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>();
  SimulatedExecutor executor_{Plan(), Options()};
};

TEST_F(SimulatedExecutorTest, AStepBeginsWhenTheOneBeforeItHasEnded) {
  clock_->Set(100.0);
  executor_.Submit(Step({5, 6, 7}, 0));
  executor_.Submit(Step({kTokenFromSlot}, 3));
  EXPECT_EQ(executor_.next_end_ms(), 108.0);
  EXPECT_EQ(executor_.Collect().device_ms, 8.0);
  EXPECT_EQ(clock_->NowMs(), 108.0);
  EXPECT_EQ(executor_.Collect().device_ms, 2.0);
  EXPECT_EQ(clock_->NowMs(), 110.0);
  clock_->Set(500.0);  // The device was idle.
  executor_.Submit(Step({kTokenFromSlot}, 4));
  EXPECT_EQ(executor_.next_end_ms(), 502.0);
  executor_.Collect();
}

TEST_F(SimulatedExecutorTest, TheNextTokenFollowsFromAllBeforeIt) {
  const auto next = [&](std::vector<int32_t> ids) {
    return executor_.Run(Step(std::move(ids), 0)).sequences[0].tokens[0].id;
  };
  const int32_t token = next({5, 6, 7, 8, 9, 10});
  EXPECT_EQ(next({5, 6, 7, 8, 9, 10}), token);
  EXPECT_NE(next({4, 6, 7, 8, 9, 10}), token);
  // In two chunks; with the first one in other pages, copied.
  executor_.Run(Step({5, 6, 7, 8}, 0));
  EXPECT_EQ(executor_.Run(Step({9, 10}, 4)).sequences[0].tokens[0].id, token);
  StepBatch copied = Step({9, 10}, 4, /*first_page=*/11);
  copied.page_copies = {{.from = 1, .to = 11}};
  EXPECT_EQ(executor_.Run(std::move(copied)).sequences[0].tokens[0].id, token);
}

TEST_F(SimulatedExecutorTest, APageOfAnotherTextChangesWhatFollows) {
  executor_.Run(Step({1, 2, 3, 4}, 0, /*first_page=*/21));
  const int32_t token = executor_.Run(Step({5, 6, 7, 8, 9}, 0)).sequences[0].tokens[0].id;
  EXPECT_NE(executor_.Run(Step({9}, 4, /*first_page=*/21)).sequences[0].tokens[0].id, token);
}

TEST_F(SimulatedExecutorTest, PromptsAreScored) {
  StepBatch batch = Step({5, 6, 7}, 0);
  batch.bindings[0].num_score_top = 2;
  batch.sequences[0].num_scored = 2;
  batch.sequences[0].num_outputs = 3;
  batch.scored_ids = {6, 7};
  const SequenceOutput output = executor_.Run(std::move(batch)).sequences[0];
  ASSERT_EQ(output.scores.size(), 2u);
  EXPECT_EQ(output.scores[0].id, 6);
  EXPECT_EQ(output.scores[1].id, 7);
  EXPECT_EQ(output.scores[1].num_top, 2);
  EXPECT_EQ(output.tokens.size(), 1u);
}

TEST_F(SimulatedExecutorTest, ARequestThatAllowsNothingFailsAlone) {
  StepBatch batch = Step({5, 6, 7}, 0);
  auto sampling = std::make_shared<SamplingParams>();
  sampling->allowed_tokens = {9};
  sampling->suppress_tokens = {9};
  batch.bindings[0].sampling = sampling;
  executor_.Submit(std::move(batch));
  executor_.Submit(Step({kTokenFromSlot}, 3));
  const SequenceOutput output = executor_.Collect().sequences[0];
  EXPECT_TRUE(output.error.has_value());
  EXPECT_TRUE(output.blames_request);
  EXPECT_TRUE(executor_.Collect().sequences[0].tokens.empty());
  EXPECT_EQ(executor_.Run(Step({5, 6, 7}, 0)).sequences[0].tokens.size(), 1u);
}

}  // namespace
}  // namespace lapidary::simulated
