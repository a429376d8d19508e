#include "executor/cuda/step_arrays.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "model/config.h"
#include "model/presets.h"

namespace lapidary::cuda {
namespace {

constexpr int kPaddingSlot = 9;

class StepArraysTest : public testing::Test {
 protected:
  StepArraysTest()
      : plan_(MakeModelPlan(ParseModelConfig(PresetConfig("tiny-e").value(), "tiny-e").value())
                  .value()),
        layout_(MakeKvLayout(plan_, 2, {4, 8})) {
    StepArrays::Options options;
    options.split_row_sets = true;
    options.padding_slot = kPaddingSlot;
    for (int group = 0; group < kNumKvGroups; ++group) {
      options.geometry[group] = {4, 2, group == kSlidingGroup ? 24 : 0};
      options.decode_work[group].max_partials = 64;
      options.mixed_work[group].max_partials = 64;
    }
    arrays_ = std::make_unique<StepArrays>(plan_, layout_, options);
  }

  // A sequence whose pages are first_page, first_page + 1, ... in both groups.
  static SequenceStep Sequence(int slot, int num_cached, int num_rows, int num_outputs,
                               int first_page) {
    auto tables = std::make_shared<PageTables>();
    for (int group = 0; group < kNumKvGroups; ++group) {
      const int tokens = group == kSlidingGroup ? 4 : 8;
      (*tables)[group].first_block = group == kSlidingGroup ? num_cached / tokens / 2 : 0;
      const int end_block = (num_cached + num_rows + tokens - 1) / tokens;
      for (int block = (*tables)[group].first_block; block < end_block; ++block) {
        (*tables)[group].pages.push_back(first_page + block);
      }
    }
    SequenceStep step;
    step.slot = slot;
    step.num_cached = num_cached;
    step.num_rows = num_rows;
    step.num_outputs = num_outputs;
    step.pages = std::move(tables);
    return step;
  }

  static void Add(StepBatch& batch, SequenceStep step) {
    for (int row = 0; row < step.num_rows; ++row) {
      batch.token_ids.push_back(100 * step.slot + row);
    }
    batch.sequences.push_back(std::move(step));
  }

  void Collect(const StepBatch& batch, int padded_rows = 0, int pending_slot = -1) {
    arrays_->Collect(batch, padded_rows, [&](int32_t slot) { return slot == pending_slot; });
  }

  // Lays out and writes; At<T>(offset) then reads what a kernel would.
  void Write(const StepShape& shape) {
    offsets_ = LayOutStep(shape);
    memory_.assign(offsets_.total, std::byte{0xee});
    num_bytes_ = arrays_->Write(offsets_, memory_.data());
    ASSERT_LE(num_bytes_, offsets_.total);
  }
  template <typename T>
  std::vector<T> At(int64_t offset, int count) const {
    std::vector<T> values(count);
    std::memcpy(values.data(), memory_.data() + offset, count * sizeof(T));
    return values;
  }

  const ModelPlan plan_;
  const KvLayout layout_;
  std::unique_ptr<StepArrays> arrays_;
  StepOffsets offsets_;
  std::vector<std::byte> memory_;
  int64_t num_bytes_ = 0;
};

TEST_F(StepArraysTest, RowsKnowTheirPositionsPagesAndTables) {
  StepBatch batch;
  Add(batch, Sequence(1, 30, 1, 1, 50));
  Add(batch, Sequence(0, 6, 5, 2, 10));
  Collect(batch);
  const StepShape shape = arrays_->shape();
  EXPECT_EQ(shape.rows, 6);
  EXPECT_EQ(shape.outputs, 3);
  EXPECT_TRUE(shape.two_row_sets);
  EXPECT_FALSE(arrays_->is_decode());
  Write(shape);
  EXPECT_EQ(At<int32_t>(offsets_.positions, 6), (std::vector<int32_t>{30, 6, 7, 8, 9, 10}));
  EXPECT_EQ(At<int32_t>(offsets_.slots, 6), (std::vector<int32_t>{1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(At<int32_t>(offsets_.output_rows, 3), (std::vector<int32_t>{0, 4, 5}));
  EXPECT_EQ(At<int32_t>(offsets_.write_pages[kSlidingGroup], 6),
            (std::vector<int32_t>{57, 11, 11, 12, 12, 12}));
  EXPECT_EQ(At<int32_t>(offsets_.write_slots[kFullGroup], 6),
            (std::vector<int32_t>{6, 6, 7, 0, 1, 2}));
  // page_ids[table_base + block] is the page of a block, in every group and row set.
  for (int group = 0; group < kNumKvGroups; ++group) {
    const auto ids = At<int32_t>(offsets_.page_ids[group], shape.page_ids[group]);
    const auto all = At<AttentionSequence>(offsets_.sequences[group][kAllRows], 2);
    const auto outputs = At<AttentionSequence>(offsets_.sequences[group][kOutputRows], 2);
    for (size_t idx = 0; idx < 2; ++idx) {
      const PageTable& table = (*batch.sequences[idx].pages)[group];
      for (int block = table.first_block; block < table.end_block(); ++block) {
        EXPECT_EQ(ids[all[idx].table_base + block], table.PageOf(block));
      }
      EXPECT_EQ(outputs[idx].table_base, all[idx].table_base);
    }
    EXPECT_EQ(all[1].first_query, 1);
    EXPECT_EQ(all[1].num_queries, 5);
    EXPECT_EQ(all[1].first_new, 1);
    EXPECT_EQ(outputs[1].first_query, 1);  // its outputs follow the first sequence's one
    EXPECT_EQ(outputs[1].num_queries, 2);
    EXPECT_EQ(outputs[1].first_position, 9);
    EXPECT_EQ(outputs[1].first_new, 1);  // new entries are those of all rows
  }
}

TEST_F(StepArraysTest, RowsWithoutAPageAreNotKept) {
  StepBatch batch;
  SequenceStep step = Sequence(0, 0, 12, 1, 20);
  auto tables = std::make_shared<PageTables>(*step.pages);
  (*tables)[kSlidingGroup].first_block = 2;  // a long chunk keeps its last rows alone
  (*tables)[kSlidingGroup].pages = {22};
  step.pages = tables;
  Add(batch, step);
  Collect(batch);
  Write(arrays_->shape());
  const auto pages = At<int32_t>(offsets_.write_pages[kSlidingGroup], 12);
  EXPECT_EQ(std::count(pages.begin(), pages.end(), kScratchPage), 8);
  EXPECT_EQ(pages[8], 22);
}

TEST_F(StepArraysTest, PaddingWritesNothingAndReadsItself) {
  StepBatch batch;
  for (int slot = 0; slot < 3; ++slot) {
    SequenceStep step = Sequence(slot, 5 * slot, 1, 1, 10 * (slot + 1));
    step.sampling = std::make_shared<SamplingParams>();
    Add(batch, std::move(step));
  }
  ASSERT_TRUE(StepArrays::IsPlainDecode(batch));
  Collect(batch, /*padded_rows=*/4);
  const StepShape shape = arrays_->shape();
  EXPECT_EQ(shape.rows, 4);
  EXPECT_EQ(shape.outputs, 4);
  EXPECT_EQ(shape.sampled, 4);
  EXPECT_FALSE(shape.two_row_sets);
  Write(shape);
  EXPECT_EQ(At<int32_t>(offsets_.slots, 4)[3], kPaddingSlot);
  const auto rows = At<SamplingRow>(offsets_.sampling, 4);
  EXPECT_EQ(rows[3].slot, kPaddingSlot);
  EXPECT_EQ(rows[3].logits_row, 3);
  for (int group = 0; group < kNumKvGroups; ++group) {
    EXPECT_EQ(At<int32_t>(offsets_.write_pages[group], 4)[3], kScratchPage);
    const AttentionSequence padding =
        At<AttentionSequence>(offsets_.sequences[group][kAllRows], 4)[3];
    EXPECT_EQ(padding.num_cached, 0);
    EXPECT_EQ(padding.first_new, 3);
    EXPECT_EQ(padding.first_query, 3);
    // Every row, padding too, has work: no row is left to what memory held.
    const auto items = At<AttentionItem>(offsets_.items[group][kAllRows],
                                         At<int32_t>(offsets_.num_items[group][kAllRows], 1)[0]);
    std::set<int32_t> sequences;
    for (const AttentionItem& item : items) sequences.insert(item.sequence);
    EXPECT_EQ(sequences.size(), 4u);
  }
}

TEST_F(StepArraysTest, PlacesDependOnTheShapeAloneAndDoNotOverlap) {
  StepShape shape;
  shape.rows = 3;
  shape.sequences = 3;
  shape.outputs = 2;
  shape.sampled = 2;
  shape.two_row_sets = true;
  shape.list_entries = {5, 6, 7};
  shape.items = {11, 13};
  shape.page_ids = {17, 19};
  const StepOffsets offsets = LayOutStep(shape);
  std::vector<std::pair<int64_t, int64_t>> places = {{offsets.token_ids, 12},
                                                     {offsets.slots, 12},
                                                     {offsets.positions, 12},
                                                     {offsets.output_rows, 8},
                                                     {offsets.sampling, 2 * sizeof(SamplingRow)},
                                                     {offsets.lists[0], 20},
                                                     {offsets.lists[1], 48},
                                                     {offsets.lists[2], 56},
                                                     {offsets.page_ids[0], 68},
                                                     {offsets.page_ids[1], 76}};
  for (int group = 0; group < kNumKvGroups; ++group) {
    places.emplace_back(offsets.write_pages[group], 12);
    places.emplace_back(offsets.write_slots[group], 12);
    for (int row_set = 0; row_set < kNumRowSets; ++row_set) {
      places.emplace_back(offsets.num_items[group][row_set], 4);
      places.emplace_back(offsets.sequences[group][row_set], 3 * sizeof(AttentionSequence));
      places.emplace_back(offsets.items[group][row_set],
                          shape.items[group] * sizeof(AttentionItem));
    }
  }
  std::sort(places.begin(), places.end());
  for (size_t idx = 0; idx < places.size(); ++idx) {
    EXPECT_EQ(places[idx].first % 16, 0);
    const int64_t next = idx + 1 < places.size() ? places[idx + 1].first : offsets.total;
    EXPECT_LE(places[idx].first + places[idx].second, next);
  }
}

TEST_F(StepArraysTest, SamplingCarriesDraftsListsAndHistory) {
  StepBatch batch;
  SequenceStep step = Sequence(2, 7, 3, 3, 10);
  step.num_drafts = 2;
  SamplingParams params;
  params.frequency_penalty = 0.5f;
  params.logit_bias = {{9, 1.0f}, {4, 2.0f}, {9, 3.0f}};
  params.suppress_tokens = {1};
  params.allowed_tokens = {8, 3, 8};
  step.sampling = std::make_shared<SamplingParams>(params);
  step.history = std::make_shared<PenaltyState>();
  step.history->AddOutput(6);
  step.sample_position = 40;
  Add(batch, std::move(step));
  Collect(batch, 0, /*pending_slot=*/2);
  EXPECT_EQ(arrays_->sampling_needs(), (SamplingNeeds{.adjustments = true, .drafts = true}));
  Write(arrays_->shape());
  const auto rows = At<SamplingRow>(offsets_.sampling, 3);
  EXPECT_EQ(rows[0].draft, 201);  // what the second row stands for
  EXPECT_EQ(rows[1].draft, 202);
  EXPECT_EQ(rows[2].draft, -1);
  EXPECT_EQ(rows[2].position, 42u);
  EXPECT_EQ(rows[2].rows_before, 2);
  EXPECT_EQ(rows[0].pending_slot, 2);
  EXPECT_EQ(rows[0].num_history, 1);
  EXPECT_EQ(rows[0].num_allowed, 2);
  const auto ids = At<int32_t>(offsets_.lists[0], 3);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 8}));
  const auto biases = At<SamplingBias>(offsets_.lists[1], 3);
  EXPECT_EQ(biases[0].id, 4);
  EXPECT_EQ(biases[1].bias, 1.0f);  // equal ids stay in their order
  EXPECT_EQ(biases[2].bias, 3.0f);
}

TEST_F(StepArraysTest, ScoredRowsComeBeforeTheSampledOne) {
  StepBatch batch;
  SequenceStep step = Sequence(0, 0, 4, 3, 10);
  step.scored_ids = {70, 71};
  step.num_score_top = 2;
  step.sampling = std::make_shared<SamplingParams>();
  Add(batch, std::move(step));
  Collect(batch);
  EXPECT_TRUE(arrays_->sampling_needs().logprobs);
  Write(arrays_->shape());
  const auto rows = At<SamplingRow>(offsets_.sampling, 3);
  EXPECT_EQ(rows[0].scored_id, 70);
  EXPECT_EQ(rows[0].num_logprobs, 2);
  EXPECT_EQ(rows[1].logits_row, 1);
  EXPECT_EQ(rows[2].scored_id, -1);
  EXPECT_EQ(rows[2].logits_row, 2);
}

TEST_F(StepArraysTest, AStepWithoutOutputsIsFine) {
  StepBatch batch;
  Add(batch, Sequence(0, 0, 6, 0, 10));
  Collect(batch);
  const StepShape shape = arrays_->shape();
  EXPECT_EQ(shape.outputs, 0);
  EXPECT_EQ(shape.sampled, 0);
  Write(shape);
  EXPECT_EQ(At<int32_t>(offsets_.num_items[kFullGroup][kOutputRows], 1)[0], 0);
  EXPECT_GT(At<int32_t>(offsets_.num_items[kFullGroup][kAllRows], 1)[0], 0);
}

}  // namespace
}  // namespace lapidary::cuda
