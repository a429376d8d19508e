// The first kernel of a step: from what the host planned and where the device's slots stand to what
// all other kernels read: ids, positions, places of new entries, attention's sequences and items.
//
// The host plans with the most tokens a sequence may have; only the device knows how many drafts of
// the steps before were accepted. PrepareStep is the whole of it, plain integer code that tests run
// on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/step_positions.h"
#include "model/kv_entry.h"
#include "ops/cuda/attention/attention_work.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/planned_step.h"
#include "ops/cuda/sampling/sampling.h"
#include "ops/cuda/slot_state.h"

namespace lapidary::cuda {

struct PrepareStepCall {
  int rows = 0;
  int sequences = 0;
  int sampled = 0;
  int num_row_sets = 1;
  int vocab_size = 0;
  // Planned.
  const PlannedCounts* counts = nullptr;
  const PlannedSequence* planned = nullptr;  // [sequences]
  const int32_t* planned_ids = nullptr;      // [rows]
  const int32_t* sequence_of = nullptr;      // [rows]
  const PlannedTableEntry* table_entries = nullptr;
  const AttentionItem* planned_items = nullptr;
  SamplingRow* sampling = nullptr;  // [sampled]: position and draft are filled in
  // Where the slots stand.
  SlotState* slots = nullptr;
  int32_t* tables[kNumKvGroups] = {};  // [slots, table_stride]: the page of a block
  int table_stride[kNumKvGroups] = {};
  int tokens_per_page[kNumKvGroups] = {};
  int window[kNumKvGroups] = {};
  // Prepared.
  int32_t* token_ids = nullptr;                                  // [rows]
  int32_t* positions = nullptr;                                  // [rows]
  int32_t* write_pages[kNumKvGroups] = {};                       // [rows]; 0: the row is not kept
  int32_t* write_slots[kNumKvGroups] = {};                       // [rows]
  AttentionSequence* attention[kNumKvGroups][kNumRowSets] = {};  // [sequences]
  AttentionItem* items[kNumKvGroups][kNumRowSets] = {};
  int32_t* num_items[kNumKvGroups][kNumRowSets] = {};
};

// The part of a planned item that the sequence, as long as it really is, leaves of it. An item of a
// split tile may have no key left: it then gets a tile of its own, all of it masked.
LAPIDARY_HOST_DEVICE inline AttentionItem ClipItem(AttentionItem item,
                                                   const AttentionSequence& sequence, int window) {
  const int32_t first = sequence.first_position + item.query_begin;
  const int32_t begin = window > 0 && first >= window ? first - window + 1 : 0;
  const int32_t end = first + item.num_queries;
  if (item.key_begin < begin) item.key_begin = begin;
  if (item.key_end > end) item.key_end = end;
  if (item.key_begin >= item.key_end) item.key_begin = item.key_end = 1;
  return item;
}

// One of `num_threads` threads; `sync` waits for all.
template <typename Sync>
LAPIDARY_HOST_DEVICE inline void PrepareStep(const PrepareStepCall& call, int thread,
                                             int num_threads, const Sync& sync) {
  for (int idx = thread; idx < call.counts->num_table_entries; idx += num_threads) {
    const PlannedTableEntry& entry = call.table_entries[idx];
    call.tables[entry.group][entry.index] = entry.page;
  }
  for (int idx = thread; idx < call.sequences; idx += num_threads) {
    const PlannedSequence& planned = call.planned[idx];
    const int32_t position = FirstPosition(call.planned_ids[planned.first_row], planned.num_cached,
                                           call.slots[planned.slot].length);
    for (int group = 0; group < kNumKvGroups; ++group) {
      AttentionSequence all;
      all.first_query = planned.first_row;
      all.num_queries = planned.num_rows;
      all.first_position = position;
      all.num_cached = position;
      all.first_new = planned.first_row;
      all.table_base = planned.slot * call.table_stride[group];
      call.attention[group][kAllRows][idx] = all;
      if (call.num_row_sets == 1) continue;
      AttentionSequence outputs = all;
      outputs.first_query = planned.first_output;
      outputs.num_queries = planned.num_outputs;
      outputs.first_position += planned.num_rows - planned.num_outputs;
      call.attention[group][kOutputRows][idx] = outputs;
    }
  }
  sync();
  for (int row = thread; row < call.rows; row += num_threads) {
    const PlannedSequence& planned = call.planned[call.sequence_of[row]];
    const AttentionSequence& sequence = call.attention[kFullGroup][kAllRows][call.sequence_of[row]];
    const int32_t position = sequence.first_position + row - planned.first_row;
    const int32_t planned_id = call.planned_ids[row];
    const int32_t id =
        planned_id == kTokenFromSlot ? call.slots[planned.slot].last_token : planned_id;
    // Whatever the id is, the row of the embedding exists.
    call.token_ids[row] = id < 0 ? 0 : id < call.vocab_size ? id : call.vocab_size - 1;
    call.positions[row] = position;
    for (int group = 0; group < kNumKvGroups; ++group) {
      const int32_t block = position / call.tokens_per_page[group];
      call.write_pages[group][row] =
          call.tables[group][planned.slot * call.table_stride[group] + block];
      call.write_slots[group][row] = position % call.tokens_per_page[group];
    }
  }
  for (int group = 0; group < kNumKvGroups; ++group) {
    for (int row_set = 0; row_set < call.num_row_sets; ++row_set) {
      const int32_t num_items = call.counts->num_items[group][row_set];
      const AttentionItem* planned = call.planned_items + call.counts->first_item[group][row_set];
      for (int idx = thread; idx < num_items; idx += num_threads) {
        call.items[group][row_set][idx] =
            ClipItem(planned[idx], call.attention[group][row_set][planned[idx].sequence],
                     call.window[group]);
      }
      if (thread == 0) *call.num_items[group][row_set] = num_items;
    }
  }
  for (int idx = thread; idx < call.sampled; idx += num_threads) {
    SamplingRow& row = call.sampling[idx];
    const PlannedSequence& planned = call.planned[call.sequence_of[row.step_row]];
    const AttentionSequence& sequence =
        call.attention[kFullGroup][kAllRows][call.sequence_of[row.step_row]];
    row.position = sequence.first_position + row.step_row - planned.first_row;
    const bool has_next = row.scored_id < 0 && row.rows_before < row.num_drafts;
    row.draft = has_next ? call.planned_ids[row.step_row + 1] : -1;
  }
  sync();  // Where slots stood is known to all.
  for (int idx = thread; idx < call.sequences; idx += num_threads) {
    const PlannedSequence& planned = call.planned[idx];
    call.slots[planned.slot].length =
        LengthAfter(call.attention[kFullGroup][kAllRows][idx].first_position, planned.num_rows,
                    planned.num_sampled, /*num_accepted=*/0);
  }
}

void RunPrepareStep(const LaunchContext& context, const PrepareStepCall& call);

}  // namespace lapidary::cuda
