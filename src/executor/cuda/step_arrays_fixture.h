// A step on its way to the kernels, for tests: StepArrays, and PrepareStep on the host.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "executor/cuda/step_arrays.h"

namespace lapidary::cuda {

inline constexpr int kPaddingSlot = 9;
inline constexpr int kStride = 64;
inline constexpr std::array<int, kNumKvGroups> kTokens = {4, 8};
inline constexpr int kWindow = 24;

class StepArraysTest : public testing::Test {
 protected:
  StepArraysTest() : requests_(kPaddingSlot + 1, 1000, 4096), states_(kPaddingSlot + 1) {
    options_.split_row_sets = true;
    options_.padding_slot = kPaddingSlot;
    options_.replaced_capacity = 1000;
    for (int group = 0; group < kNumKvGroups; ++group) {
      options_.geometry[group] = {4, 2, group == kSlidingGroup ? kWindow : 0};
      options_.draft_geometry[group] = {4, 2, group == kSlidingGroup ? kWindow - 1 : 0};
      options_.head_dim[group] = 256;
      for (size_t tile = 0; tile < std::size(kAttentionTileRows); ++tile) {
        options_.work[group][tile] = WorkOfTile(kAttentionTileRows[tile], false);
        options_.work[group][tile].max_partials = 64;
      }
      options_.table_stride[group] = kStride;
      tables_[group].assign((kPaddingSlot + 1) * kStride, kScratchPage);
    }
    arrays_ = std::make_unique<StepArrays>(options_);
  }

  // A sequence whose block b is page first_page + b in both groups.
  void Add(StepBatch& batch, SequenceStep step, int first_page) {
    for (int group = 0; group < kNumKvGroups; ++group) {
      const int end = (step.num_cached + step.num_rows + kTokens[group] - 1) / kTokens[group];
      for (int block = 0; block < end; ++block) {
        batch.table_entries.push_back({step.slot, group, block, first_page + block});
      }
    }
    for (int row = 0; row < step.num_rows; ++row) {
      batch.token_ids.push_back(100 * step.slot + row);
    }
    batch.sequences.push_back(step);
  }

  void Collect(const StepBatch& batch, int padded_sequences = 0) {
    arrays_->Collect(batch, padded_sequences, requests_);
  }

  // Lays out, writes and prepares; At<T>(offset) then reads what a kernel would.
  void Prepare(const StepShape& shape) {
    offsets_ = LayOutStep(shape);
    memory_.assign(offsets_.total, std::byte{0xee});
    ASSERT_LE(arrays_->Write(offsets_, memory_.data()), offsets_.token_ids);
    PrepareStepCall call;
    call.rows = shape.rows;
    call.sequences = shape.sequences;
    call.sampled = shape.sampled;
    call.two_row_sets = shape.two_row_sets;
    call.rounds = shape.rounds;
    call.planned_rounds = Pointer<PlannedRound>(offsets_.rounds);
    call.draft_tokens = Pointer<int32_t>(offsets_.draft_tokens);
    call.draft_positions = Pointer<int32_t>(offsets_.draft_positions);
    call.vocab_size = 100000;
    call.counts = Pointer<PlannedCounts>(offsets_.counts);
    call.planned = Pointer<PlannedSequence>(offsets_.planned);
    call.planned_ids = Pointer<int32_t>(offsets_.planned_ids);
    call.sequence_of = Pointer<int32_t>(offsets_.sequence_of);
    call.table_entries = Pointer<PlannedTableEntry>(offsets_.table_entries);
    call.planned_items = Pointer<AttentionItem>(offsets_.planned_items);
    call.sampling = Pointer<SamplingRow>(offsets_.sampling);
    if (shape.sees_ahead) {
      call.keys_ahead[kAllRows] = Pointer<int32_t>(offsets_.keys_ahead[kAllRows]);
      call.keys_ahead[kOutputRows] = Pointer<int32_t>(offsets_.keys_ahead[kOutputRows]);
    }
    call.slots = states_.data();
    call.token_ids = Pointer<int32_t>(offsets_.token_ids);
    call.positions = Pointer<int32_t>(offsets_.positions);
    for (int group = 0; group < kNumKvGroups; ++group) {
      call.tables[group] = tables_[group].data();
      call.table_stride[group] = kStride;
      call.tokens_per_page[group] = kTokens[group];
      call.window[group] = options_.geometry[group].window;
      call.draft_window[group] = options_.draft_geometry[group].window;
      call.write_pages[group] = Pointer<int32_t>(offsets_.write_pages[group]);
      call.write_slots[group] = Pointer<int32_t>(offsets_.write_slots[group]);
      for (int row_set = 0; row_set < kNumRowSets; ++row_set) {
        call.attention[group][row_set] =
            Pointer<AttentionSequence>(offsets_.attention[group][row_set]);
        call.items[group][row_set] = Pointer<AttentionItem>(offsets_.items[group][row_set]);
        call.num_items[group][row_set] = Pointer<int32_t>(offsets_.num_items[group][row_set]);
      }
    }
    PrepareStep(call, /*thread=*/0, /*num_threads=*/1, [] {});
  }
  template <typename T>
  T* Pointer(int64_t offset) {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  template <typename T>
  std::vector<T> At(int64_t offset, int count) {
    return std::vector<T>(Pointer<T>(offset), Pointer<T>(offset) + count);
  }
  std::vector<AttentionItem> Items(int group, int row_set) {
    return At<AttentionItem>(offsets_.items[group][row_set],
                             At<int32_t>(offsets_.num_items[group][row_set], 1)[0]);
  }

  StepArrays::Options options_;
  SlotRequests requests_;
  std::vector<SlotState> states_;
  std::array<std::vector<int32_t>, kNumKvGroups> tables_;
  std::unique_ptr<StepArrays> arrays_;
  StepOffsets offsets_;
  std::vector<std::byte> memory_;
};

}  // namespace lapidary::cuda
