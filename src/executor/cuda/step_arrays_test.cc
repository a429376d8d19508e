// What kernels read of a step: planned by StepArrays, prepared by PrepareStep, which runs here on
// the host as it does on the device.
#include "executor/cuda/step_arrays.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "executor/cuda/step_arrays_fixture.h"

namespace lapidary::cuda {
namespace {

TEST_F(StepArraysTest, RowsKnowTheirPositionsPagesAndTables) {
  StepBatch batch;
  Add(batch, {.slot = 1, .num_cached = 30, .num_rows = 1, .num_outputs = 1}, 50);
  Add(batch, {.slot = 0, .num_cached = 6, .num_rows = 5, .num_outputs = 2}, 10);
  Collect(batch);
  const StepShape shape = arrays_->shape();
  EXPECT_EQ(shape.rows, 6);
  EXPECT_EQ(shape.outputs, 3);
  EXPECT_TRUE(shape.two_row_sets);
  Prepare(shape);
  EXPECT_EQ(At<int32_t>(offsets_.token_ids, 6), (std::vector<int32_t>{100, 0, 1, 2, 3, 4}));
  EXPECT_EQ(At<int32_t>(offsets_.positions, 6), (std::vector<int32_t>{30, 6, 7, 8, 9, 10}));
  EXPECT_EQ(At<int32_t>(offsets_.output_rows, 3), (std::vector<int32_t>{0, 4, 5}));
  EXPECT_EQ(At<int32_t>(offsets_.write_pages[kSlidingGroup], 6),
            (std::vector<int32_t>{57, 11, 11, 12, 12, 12}));
  EXPECT_EQ(At<int32_t>(offsets_.write_slots[kFullGroup], 6),
            (std::vector<int32_t>{6, 6, 7, 0, 1, 2}));
  for (int group = 0; group < kNumKvGroups; ++group) {
    const auto all = At<AttentionSequence>(offsets_.attention[group][kAllRows], 2);
    const auto outputs = At<AttentionSequence>(offsets_.attention[group][kOutputRows], 2);
    EXPECT_EQ(tables_[group][all[0].table_base + 2], 52);
    EXPECT_EQ(tables_[group][all[1].table_base + 1], 11);
    EXPECT_EQ(all[1].first_query, 1);
    EXPECT_EQ(all[1].num_queries, 5);
    EXPECT_EQ(all[1].num_cached, 6);
    EXPECT_EQ(all[1].first_new, 1);
    EXPECT_EQ(outputs[1].first_query, 1);  // its outputs follow the first sequence's one
    EXPECT_EQ(outputs[1].num_queries, 2);
    EXPECT_EQ(outputs[1].first_position, 9);
    EXPECT_EQ(outputs[1].first_new, 1);  // new entries are those of all rows
    EXPECT_EQ(outputs[1].table_base, all[1].table_base);
  }
  EXPECT_EQ(states_[0].length, 11);
  EXPECT_EQ(states_[1].length, 31);
}

TEST_F(StepArraysTest, RowsFromTheSlotBeginWhereItEnds) {
  states_[3] = {.length = 37, .last_token = 777};
  StepBatch batch;
  // Up to 40 tokens are cached; three drafts were rejected.
  Add(batch,
      {.slot = 3,
       .num_cached = 40,
       .num_uncertain = 6,
       .num_rows = 3,
       .num_outputs = 3,
       .samples = true,
       .num_drafts = 2},
      20);
  batch.token_ids = {kTokenFromSlot, 5, 6};
  Collect(batch);
  Prepare(arrays_->shape());
  EXPECT_EQ(At<int32_t>(offsets_.token_ids, 3), (std::vector<int32_t>{777, 5, 6}));
  EXPECT_EQ(At<int32_t>(offsets_.positions, 3), (std::vector<int32_t>{37, 38, 39}));
  EXPECT_EQ(At<int32_t>(offsets_.write_pages[kSlidingGroup], 3),
            (std::vector<int32_t>{29, 29, 29}));
  const auto rows = At<SamplingRow>(offsets_.sampling, 3);
  EXPECT_EQ(rows[0].position, 37);
  EXPECT_EQ(rows[0].draft, 5);
  EXPECT_EQ(rows[1].draft, 6);
  EXPECT_EQ(rows[2].draft, -1);
  EXPECT_EQ(rows[2].rows_before, 2);
  EXPECT_EQ(states_[3].length, 37);  // until rows are accepted
}

// Whatever a sequence's true length is, its items cover exactly the keys that its rows see.
TEST_F(StepArraysTest, ItemsPlannedForTheMostCoverEveryTrueLength) {
  for (const bool batch_invariant : {false, true}) {
    options_.batch_invariant = batch_invariant;
    for (auto& group : options_.work) {
      for (AttentionWorkOptions& work : group) {
        work.batch_invariant = batch_invariant;
        work.num_blocks = 40;
        work.max_partials = 512;
      }
    }
    options_.table_stride = {1024, 512};
    for (auto& table : tables_) table.assign((kPaddingSlot + 1) * 1024, kScratchPage);
    arrays_ = std::make_unique<StepArrays>(options_);
    for (const int num_cached : {7, 30, 515, 1700, 2049}) {
      for (int rejected = 0; rejected <= 6; ++rejected) {
        states_[0] = {.length = num_cached - rejected, .last_token = 1};
        StepBatch batch;
        batch.token_ids = {kTokenFromSlot, 4, 4, 4};
        batch.sequences.push_back({.slot = 0,
                                   .num_cached = num_cached,
                                   .num_uncertain = 6,
                                   .num_rows = 4,
                                   .num_outputs = 4,
                                   .samples = true,
                                   .num_drafts = 3});
        Collect(batch);
        Prepare(arrays_->shape());
        for (int group = 0; group < kNumKvGroups; ++group) {
          const int window = options_.geometry[group].window;
          const int first = num_cached - rejected;
          std::map<std::pair<int, int>, std::vector<AttentionItem>> tiles;
          for (const AttentionItem& item : Items(group, kAllRows)) {
            tiles[{item.kv_head, item.query_begin}].push_back(item);
          }
          ASSERT_FALSE(tiles.empty());
          for (auto& [tile, items] : tiles) {
            std::sort(items.begin(), items.end(),
                      [](const auto& a, const auto& b) { return a.split < b.split; });
            const int tile_first = first + tile.second;
            int key = window > 0 ? std::max(0, tile_first - window + 1) : 0;
            for (const AttentionItem& item : items) {
              ASSERT_EQ(item.num_splits, static_cast<int>(items.size()));
              if (item.key_begin == item.key_end) {
                ASSERT_GT(item.num_splits, 1);
                ASSERT_NE(item.key_begin % kAttentionKeyTile, 0);  // one tile, all masked
                continue;
              }
              ASSERT_EQ(item.key_begin, key);
              key = item.key_end;
            }
            ASSERT_EQ(key, tile_first + items[0].num_queries)
                << num_cached << " cached, " << rejected << " rejected, group " << group;
          }
        }
      }
    }
  }
}

TEST_F(StepArraysTest, RowsWithoutAPageAreNotKept) {
  StepBatch batch;
  Add(batch, {.slot = 0, .num_rows = 12, .num_outputs = 1}, 20);
  for (PageTableEntry& entry : batch.table_entries) {  // a long chunk keeps its last rows alone
    if (entry.group_idx == kSlidingGroup && entry.block < 2) entry.page = kScratchPage;
  }
  tables_[kSlidingGroup][1] = 77;  // of the slot's last sequence
  Collect(batch);
  Prepare(arrays_->shape());
  const auto pages = At<int32_t>(offsets_.write_pages[kSlidingGroup], 12);
  EXPECT_EQ(std::count(pages.begin(), pages.end(), kScratchPage), 8);
  EXPECT_EQ(pages[8], 22);
}

TEST_F(StepArraysTest, PaddingWritesNothingAndReadsItself) {
  StepBatch batch;
  for (int slot = 0; slot < 3; ++slot) {
    Add(batch,
        {.slot = slot, .num_cached = 5 * slot, .num_rows = 1, .num_outputs = 1, .samples = true},
        10 * (slot + 1));
  }
  EXPECT_EQ(FindUniformStep(batch).rows_per_sequence, 1);
  Collect(batch, /*padded_sequences=*/4);
  const StepShape shape = arrays_->shape();
  EXPECT_EQ(shape.rows, 4);
  EXPECT_EQ(shape.outputs, 4);
  EXPECT_EQ(shape.sampled, 4);
  EXPECT_FALSE(shape.two_row_sets);
  Prepare(shape);
  const auto rows = At<SamplingRow>(offsets_.sampling, 4);
  EXPECT_EQ(rows[3].slot, kPaddingSlot);
  EXPECT_EQ(rows[3].logits_row, 3);
  for (int group = 0; group < kNumKvGroups; ++group) {
    EXPECT_EQ(At<int32_t>(offsets_.write_pages[group], 4)[3], kScratchPage);
    const AttentionSequence padding =
        At<AttentionSequence>(offsets_.attention[group][kAllRows], 4)[3];
    EXPECT_EQ(padding.num_cached, 0);
    EXPECT_EQ(padding.first_new, 3);
    EXPECT_EQ(padding.first_query, 3);
    // Every row, padding too, has work: no row is left to what memory held.
    std::set<int32_t> sequences;
    for (const AttentionItem& item : Items(group, kAllRows)) sequences.insert(item.sequence);
    EXPECT_EQ(sequences.size(), 4u);
  }
}

TEST_F(StepArraysTest, AStepIsUniformOnlyIfAllRowsOfAllSequencesAreSampledAlike) {
  const SequenceStep verify = {.num_rows = 4, .num_outputs = 4, .samples = true, .num_drafts = 3};
  StepBatch batch;
  batch.sequences = {verify, verify};
  batch.token_ids = {kTokenFromSlot, 5, 6, 7, kTokenFromSlot, 8, 9, 10};
  EXPECT_EQ(FindUniformStep(batch).sequences, 2);
  EXPECT_EQ(FindUniformStep(batch).rows_per_sequence, 4);
  EXPECT_FALSE(FindUniformStep(batch).drafts_here);
  // All drafts are the drafter's, or none.
  std::fill_n(batch.token_ids.begin() + 1, 3, kTokenFromDrafter);
  EXPECT_EQ(FindUniformStep(batch).rows_per_sequence, 0);
  std::fill_n(batch.token_ids.begin() + 5, 3, kTokenFromDrafter);
  EXPECT_EQ(FindUniformStep(batch).rows_per_sequence, 4);
  EXPECT_TRUE(FindUniformStep(batch).drafts_here);
  batch.sequences[1].num_rows = 5;
  EXPECT_EQ(FindUniformStep(batch).rows_per_sequence, 0);
  batch.sequences[1] = verify;
  batch.sequences[1].samples = false;
  EXPECT_EQ(FindUniformStep(batch).rows_per_sequence, 0);
  batch.sequences[1] = {.num_rows = 4, .num_outputs = 1, .samples = true};
  EXPECT_EQ(FindUniformStep(batch).rows_per_sequence, 0);
  EXPECT_EQ(FindUniformStep({}).rows_per_sequence, 0);
}

TEST_F(StepArraysTest, RoundsOfDraftsSeeTheKeysBeforeTheLastToken) {
  StepBatch batch;
  const auto add = [&](int slot, int most, int drafts) {
    SequenceStep step{.slot = slot,
                      .num_cached = most,
                      .num_uncertain = 3,
                      .num_rows = 1 + drafts,
                      .num_outputs = 1 + drafts,
                      .samples = true,
                      .num_drafts = drafts};
    batch.sequences.push_back(step);
    batch.token_ids.push_back(kTokenFromSlot);
    batch.token_ids.insert(batch.token_ids.end(), drafts, kTokenFromDrafter);
  };
  add(0, 40, 1);
  add(1, 33, 3);
  states_[0] = {.length = 38, .last_token = 71};
  states_[1] = {.length = 33, .last_token = 72};
  Collect(batch);
  const StepShape shape = arrays_->shape();
  EXPECT_EQ(shape.rounds, 2);
  // The longest first: two rounds have a first draft, one has a second and a third.
  EXPECT_EQ(arrays_->rounds_with_draft(), (std::vector<int32_t>{2, 1, 1}));
  Prepare(shape);
  const auto rounds = At<PlannedRound>(offsets_.rounds, 2);
  EXPECT_EQ(rounds[0].sequence, 1);
  EXPECT_EQ(rounds[0].first_sampled, 2);
  EXPECT_EQ(rounds[0].first_draft, 1);
  EXPECT_EQ(rounds[1].sequence, 0);
  EXPECT_EQ(At<int32_t>(offsets_.draft_tokens, 2), (std::vector<int32_t>{72, 71}));
  EXPECT_EQ(At<int32_t>(offsets_.draft_positions, 2), (std::vector<int32_t>{33, 38}));
  for (int group = 0; group < kNumKvGroups; ++group) {
    const auto sequences = At<AttentionSequence>(offsets_.attention[group][kDraftRows], 2);
    EXPECT_EQ(sequences[0].num_cached, 33);
    EXPECT_EQ(sequences[0].first_position, 32);  // as if they stood on the last key
    EXPECT_EQ(sequences[0].table_base, kStride);
    EXPECT_EQ(sequences[1].num_cached, 38);
    EXPECT_EQ(sequences[1].table_base, 0);
    // The items cover what the window leaves of each round's keys once, for every KV head.
    const AttentionGeometry& geometry = options_.draft_geometry[group];
    std::map<std::pair<int, int>, int> num_keys;
    for (const AttentionItem& item : Items(group, kDraftRows)) {
      num_keys[{item.sequence, item.kv_head}] += item.key_end - item.key_begin;
    }
    for (int round = 0; round < 2; ++round) {
      const int keys = sequences[round].num_cached;
      const int seen = geometry.window == 0 ? keys : std::min(keys, geometry.window);
      for (int head = 0; head < geometry.num_kv_heads; ++head) {
        EXPECT_EQ((num_keys[{round, head}]), seen) << "group " << group << " round " << round;
      }
    }
  }
}

TEST_F(StepArraysTest, DraftsThatAskFromTheLastKeysPositionSeeOneKeyMore) {
  EXPECT_EQ(DraftWindow(8, /*drafts_ask_before=*/false), 7);
  EXPECT_EQ(DraftWindow(8, /*drafts_ask_before=*/true), 8);
  EXPECT_EQ(DraftWindow(1, false),
            1);  // The last key is there even where the window ends before it.
  EXPECT_EQ(DraftWindow(0, false), 0);
}

TEST_F(StepArraysTest, PlacesDependOnTheShapeAloneAndDoNotOverlap) {
  StepShape shape;
  shape.rows = 3;
  shape.sequences = 2;
  shape.outputs = 2;
  shape.sampled = 2;
  shape.two_row_sets = true;
  shape.rounds = 2;
  shape.sees_ahead = true;
  shape.table_entries = 5;
  shape.items = {11, 13};
  const StepOffsets offsets = LayOutStep(shape);
  std::vector<std::pair<int64_t, int64_t>> places = {
      {offsets.counts, sizeof(PlannedCounts)},
      {offsets.planned, 2 * sizeof(PlannedSequence)},
      {offsets.planned_ids, 12},
      {offsets.sequence_of, 12},
      {offsets.output_rows, 8},
      {offsets.sampling, 2 * sizeof(SamplingRow)},
      {offsets.table_entries, 5 * sizeof(PlannedTableEntry)},
      {offsets.rounds, 2 * sizeof(PlannedRound)},
      {offsets.keys_ahead[kAllRows], 12},
      {offsets.keys_ahead[kOutputRows], 8},
      {offsets.planned_items, 3 * (11 + 13) * sizeof(AttentionItem)},
      {offsets.token_ids, 12},
      {offsets.positions, 12},
      {offsets.draft_tokens, 8},
      {offsets.draft_positions, 8}};
  for (int group = 0; group < kNumKvGroups; ++group) {
    places.emplace_back(offsets.write_pages[group], 12);
    places.emplace_back(offsets.write_slots[group], 12);
    for (int row_set = 0; row_set < kNumRowSets; ++row_set) {
      places.emplace_back(offsets.num_items[group][row_set], 4);
      places.emplace_back(offsets.attention[group][row_set], 2 * sizeof(AttentionSequence));
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

// Ten tokens of text, an image of seven, a sound of six.
std::shared_ptr<const SoftTokenRuns> TestMedia(int hidden) {
  const auto rows = [&](int count) { return std::make_shared<std::vector<float>>(count * hidden); };
  return std::make_shared<SoftTokenRuns>(
      SoftTokenRuns{{.position = 10, .length = 7, .is_image = true, .rows = rows(7)},
                    {.position = 20, .length = 6, .is_image = false, .rows = rows(6)}});
}

TEST_F(StepArraysTest, MediaTakeTheirRowsAndImagesSeeThemselvesWhole) {
  options_.hidden_size = 8;
  options_.media_pad_id = 77;
  options_.images_see_both_ways = true;
  arrays_ = std::make_unique<StepArrays>(options_);
  const auto media = TestMedia(8);
  std::vector<SlotBindingRecord> records;
  std::vector<int32_t> words;
  requests_.Bind({.slot = 1, .media = media}, records, words);
  StepBatch batch;
  Add(batch, {.slot = 0, .num_cached = 3, .num_rows = 2, .num_outputs = 1}, 200);
  Add(batch, {.slot = 1, .num_cached = 9, .num_rows = 14, .num_outputs = 14}, 10);
  Collect(batch);
  ASSERT_EQ(arrays_->soft_rows().size(), 2u);
  const SoftRows& image = arrays_->soft_rows()[0];
  EXPECT_EQ(image.first_row, 3);
  EXPECT_EQ(image.num_rows, 7);
  EXPECT_EQ(image.values, (*media)[0].rows->data());
  const SoftRows& sound = arrays_->soft_rows()[1];
  EXPECT_EQ(sound.first_row, 13);
  EXPECT_EQ(sound.num_rows, 3);  // The rest comes in another step.
  EXPECT_EQ(sound.values, (*media)[1].rows->data());

  ASSERT_TRUE(arrays_->shape().sees_ahead);
  Prepare(arrays_->shape());
  EXPECT_EQ(
      At<int32_t>(offsets_.token_ids, 16),
      (std::vector<int32_t>{0, 1, 100, 77, 77, 77, 77, 77, 77, 77, 108, 109, 110, 77, 77, 77}));
  EXPECT_EQ(At<int32_t>(offsets_.keys_ahead[kAllRows], 16),
            (std::vector<int32_t>{0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(At<int32_t>(offsets_.keys_ahead[kOutputRows], 15),
            (std::vector<int32_t>{0, 0, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_F(StepArraysTest, ItemsReachToTheEndOfTheImageTheyEndIn) {
  options_.hidden_size = 8;
  options_.images_see_both_ways = true;
  arrays_ = std::make_unique<StepArrays>(options_);
  std::vector<SlotBindingRecord> records;
  std::vector<int32_t> words;
  const auto rows = std::make_shared<std::vector<float>>(200 * 8);
  const SoftTokenRun image{.position = 10, .length = 200, .is_image = true, .rows = rows};
  requests_.Bind({.slot = 1, .media = std::make_shared<SoftTokenRuns>(SoftTokenRuns{image})},
                 records, words);
  StepBatch batch;
  Add(batch, {.slot = 1, .num_rows = 220}, 10);
  Collect(batch);
  Prepare(arrays_->shape());
  for (const int group : {kSlidingGroup, kFullGroup}) {
    std::map<int, int> end_of;  // query -> the last key of its items
    for (const AttentionItem& item : Items(group, kAllRows)) {
      int& end = end_of[item.query_begin + item.num_queries];
      end = std::max(end, item.key_end);
    }
    ASSERT_GT(end_of.size(), 2u);
    for (const auto& [query_end, key_end] : end_of) {
      const bool in_image = query_end > 10 && query_end <= 210;
      EXPECT_EQ(key_end, group == kSlidingGroup && in_image ? 210 : query_end);
    }
  }
}

TEST_F(StepArraysTest, AStepWithoutMediaHasNoRoomForThem) {
  StepBatch batch;
  Add(batch, {.slot = 0, .num_rows = 6}, 10);
  Collect(batch);
  EXPECT_TRUE(arrays_->soft_rows().empty());
  EXPECT_FALSE(arrays_->shape().sees_ahead);
}

TEST_F(StepArraysTest, AStepWithoutOutputsIsFine) {
  StepBatch batch;
  Add(batch, {.slot = 0, .num_rows = 6}, 10);
  Collect(batch);
  const StepShape shape = arrays_->shape();
  EXPECT_EQ(shape.outputs, 0);
  EXPECT_EQ(shape.sampled, 0);
  Prepare(shape);
  EXPECT_TRUE(Items(kFullGroup, kOutputRows).empty());
  EXPECT_FALSE(Items(kFullGroup, kAllRows).empty());
}

}  // namespace
}  // namespace lapidary::cuda
