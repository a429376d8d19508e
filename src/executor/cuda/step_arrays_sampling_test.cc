// What a step asks of the sampler.
#include <gtest/gtest.h>

#include "executor/cuda/step_arrays_fixture.h"

namespace lapidary::cuda {
namespace {

TEST_F(StepArraysTest, EverySampledRowOfASlotWithAGrammarHasAMask) {
  std::vector<SlotBindingRecord> records;
  std::vector<int32_t> words;
  SlotBinding binding;
  binding.slot = 1;
  binding.sampling = std::make_shared<SamplingParams>();
  // Never looked into here.
  binding.grammar = std::shared_ptr<const grammar::CompiledGrammar>(
      std::shared_ptr<void>(), reinterpret_cast<const grammar::CompiledGrammar*>(&binding));
  requests_.Bind(binding, records, words);
  StepBatch batch;
  const auto step = [](int slot, int drafts) {
    return SequenceStep{.slot = slot,
                        .num_cached = 5,
                        .num_rows = 1 + drafts,
                        .num_outputs = 1 + drafts,
                        .samples = true,
                        .num_drafts = drafts};
  };
  Add(batch, step(0, 0), 10);
  Add(batch, step(1, 2), 20);
  Collect(batch);
  EXPECT_TRUE(arrays_->sampling_needs().masks);
  ASSERT_EQ(arrays_->masked().size(), 1u);
  EXPECT_EQ(arrays_->masked()[0].sequence, 1);
  EXPECT_EQ(arrays_->masked()[0].first_sampled, 1);
  EXPECT_EQ(arrays_->masked()[0].num_rows, 3);
  Prepare(arrays_->shape());
  const auto rows = At<SamplingRow>(offsets_.sampling, 4);
  EXPECT_EQ(rows[0].mask_row, -1);
  for (int row = 1; row < 4; ++row) EXPECT_EQ(rows[row].mask_row, row - 1);
}

TEST_F(StepArraysTest, RowsWithAdjustmentsAreDrawnInPassesThatFit) {
  SamplingParams params;
  params.frequency_penalty = 0.5f;
  StepBatch batch;
  std::vector<SlotBindingRecord> records;
  std::vector<int32_t> words;
  for (int slot = 0; slot < 4; ++slot) {
    SlotBinding binding;
    binding.slot = slot;
    binding.sampling = std::make_shared<SamplingParams>(params);
    binding.prompt_len = 300;
    for (int32_t id = 0; id < 300; ++id) binding.tokens.push_back(id);
    binding.max_len = 400;
    requests_.Bind(binding, records, words);
    Add(batch, {.slot = slot, .num_cached = 3, .num_rows = 1, .num_outputs = 1, .samples = true},
        10 * (slot + 1));
  }
  Collect(batch);
  EXPECT_TRUE(arrays_->sampling_needs().adjustments);
  EXPECT_EQ(arrays_->sampling_passes(), (std::vector<int32_t>{0, 2}));
  Prepare(arrays_->shape());
  const auto rows = At<SamplingRow>(offsets_.sampling, 4);
  EXPECT_EQ(rows[0].replaced_begin, 0);
  EXPECT_EQ(rows[1].replaced_begin, ReplacedWords(0, 0, 300));
  EXPECT_EQ(rows[2].replaced_begin, 0);
}

TEST_F(StepArraysTest, AStepDrawsWhereOneOfItsSampledSequencesDoes) {
  std::vector<SlotBindingRecord> records;
  std::vector<int32_t> words;
  for (int slot = 0; slot < 2; ++slot) {
    SlotBinding binding;
    binding.slot = slot;
    const SamplingParams params{.temperature = static_cast<float>(slot)};
    binding.sampling = std::make_shared<SamplingParams>(params);
    requests_.Bind(binding, records, words);
  }
  const auto draws = [&](bool second_samples) {
    StepBatch batch;
    Add(batch, {.slot = 0, .num_cached = 3, .num_rows = 1, .num_outputs = 1, .samples = true}, 10);
    Add(batch,
        {.slot = 1, .num_cached = 3, .num_rows = 1, .num_outputs = 1, .samples = second_samples},
        20);
    Collect(batch);
    return arrays_->sampling_needs().draws;
  };
  EXPECT_TRUE(draws(true));
  EXPECT_FALSE(draws(false));
}

TEST_F(StepArraysTest, ScoredRowsComeBeforeTheSampledOne) {
  StepBatch batch;
  Add(batch, {.slot = 0, .num_rows = 4, .num_outputs = 3, .num_scored = 2, .samples = true}, 10);
  batch.scored_ids = {70, 71};
  Collect(batch);
  EXPECT_TRUE(arrays_->sampling_needs().logprobs);
  Prepare(arrays_->shape());
  const auto rows = At<SamplingRow>(offsets_.sampling, 3);
  EXPECT_EQ(rows[0].scored_id, 70);
  EXPECT_EQ(rows[1].logits_row, 1);
  EXPECT_EQ(rows[1].draft, -1);
  EXPECT_EQ(rows[2].scored_id, -1);
  EXPECT_EQ(rows[2].logits_row, 2);
  EXPECT_EQ(rows[2].position, 3);
}

}  // namespace
}  // namespace lapidary::cuda
