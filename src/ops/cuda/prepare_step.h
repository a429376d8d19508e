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
  int rounds = 0;
  bool two_row_sets = false;
  int vocab_size = 0;
  // Planned.
  const PlannedCounts* counts = nullptr;
  const PlannedSequence* planned = nullptr;  // [sequences]
  const int32_t* planned_ids = nullptr;      // [rows]
  const int32_t* sequence_of = nullptr;      // [rows]
  const PlannedTableEntry* table_entries = nullptr;
  const AttentionItem* planned_items = nullptr;
  // Of sliding attention's queries in a row set (AttentionCall); null: none sees ahead.
  const int32_t* keys_ahead[kNumRowSets] = {};
  SamplingRow* sampling = nullptr;               // [sampled]: position and draft are filled in
  const PlannedRound* planned_rounds = nullptr;  // [rounds]
  bool drafts_ask_before = false;                // drafts ask from the last key's position
  // Where the slots stand.
  SlotState* slots = nullptr;
  int32_t* tables[kNumKvGroups] = {};  // [slots, table_stride]: the page of a block
  int table_stride[kNumKvGroups] = {};
  int tokens_per_page[kNumKvGroups] = {};
  int window[kNumKvGroups] = {};
  int draft_window[kNumKvGroups] = {};
  // Prepared.
  int32_t* token_ids = nullptr;                                  // [rows]
  int32_t* positions = nullptr;                                  // [rows]
  int32_t* write_pages[kNumKvGroups] = {};                       // [rows]; 0: the row is not kept
  int32_t* write_slots[kNumKvGroups] = {};                       // [rows]
  AttentionSequence* attention[kNumKvGroups][kNumRowSets] = {};  // [sequences]
  AttentionItem* items[kNumKvGroups][kNumRowSets] = {};
  int32_t* num_items[kNumKvGroups][kNumRowSets] = {};
  int32_t* draft_tokens = nullptr;     // [rounds] that the first drafts stand behind
  int32_t* draft_positions = nullptr;  // [rounds] that all drafts ask from

  LAPIDARY_HOST_DEVICE bool HasRowSet(int row_set) const {
    return row_set == kAllRows || (row_set == kOutputRows ? two_row_sets : rounds > 0);
  }
};

// The window of a layer whose queries stand on the last key itself, for drafts that ask from the
// position behind it: one key less. 0: all keys.
LAPIDARY_HOST_DEVICE inline int DraftWindow(int window, bool drafts_ask_before) {
  if (window == 0 || drafts_ask_before) return window;
  return window > 1 ? window - 1 : 1;
}

// A round stands still: its queries see the keys before the sequence's last token, as if they stood
// on the last of them. Padding has none; it looks at one of the scratch page.
LAPIDARY_HOST_DEVICE inline AttentionSequence DraftSequence(int32_t round, int32_t num_keys,
                                                            int32_t table_base) {
  num_keys = num_keys > 0 ? num_keys : 1;
  AttentionSequence sequence;
  sequence.first_query = round;
  sequence.num_queries = 1;
  sequence.first_position = num_keys - 1;
  sequence.num_cached = num_keys;
  sequence.table_base = table_base;
  return sequence;
}

// The part of a planned item that the sequence, as long as it really is, leaves of it; `keys_ahead`
// as AttentionCall's. An item of a split tile may have no key left: it then gets a tile of its own,
// all of it masked.
LAPIDARY_HOST_DEVICE inline AttentionItem ClipItem(AttentionItem item,
                                                   const AttentionSequence& sequence, int window,
                                                   const int32_t* keys_ahead = nullptr) {
  const int32_t first = sequence.first_position + item.query_begin;
  const int32_t begin = window > 0 && first >= window ? first - window + 1 : 0;
  const int32_t last_query = sequence.first_query + item.query_begin + item.num_queries - 1;
  const int32_t end =
      first + item.num_queries + (keys_ahead == nullptr ? 0 : keys_ahead[last_query]);
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
      if (!call.two_row_sets) continue;
      AttentionSequence outputs = all;
      outputs.first_query = planned.first_output;
      outputs.num_queries = planned.num_outputs;
      outputs.first_position += planned.num_rows - planned.num_outputs;
      call.attention[group][kOutputRows][idx] = outputs;
    }
  }
  sync();
  for (int idx = thread; idx < call.rounds; idx += num_threads) {
    const int32_t of = call.planned_rounds[idx].sequence;
    const int32_t num_keys = call.attention[kFullGroup][kAllRows][of].first_position;
    for (int group = 0; group < kNumKvGroups; ++group) {
      call.attention[group][kDraftRows][idx] =
          DraftSequence(idx, num_keys, call.attention[group][kAllRows][of].table_base);
    }
    call.draft_tokens[idx] = call.slots[call.planned[of].slot].last_token;
    call.draft_positions[idx] = num_keys > 0 && call.drafts_ask_before ? num_keys - 1 : num_keys;
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
    for (int row_set = 0; row_set < kNumRowSets; ++row_set) {
      if (!call.HasRowSet(row_set)) continue;
      const int window = row_set == kDraftRows ? call.draft_window[group] : call.window[group];
      const int32_t num_items = call.counts->num_items[group][row_set];
      const AttentionItem* planned = call.planned_items + call.counts->first_item[group][row_set];
      for (int idx = thread; idx < num_items; idx += num_threads) {
        call.items[group][row_set][idx] =
            ClipItem(planned[idx], call.attention[group][row_set][planned[idx].sequence], window,
                     group == kSlidingGroup ? call.keys_ahead[row_set] : nullptr);
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

// For a host that waits for a step's ids while the step runs: they are there once `number` is the
// step's own. Both in page-locked memory.
struct PublishIdsCall {
  int rows = 0;
  const int32_t* token_ids = nullptr;  // [rows]
  const PlannedCounts* counts = nullptr;
  int32_t* ids_out = nullptr;     // [rows]
  int32_t* number_out = nullptr;  // one
};
void RunPublishIds(const LaunchContext& context, const PublishIdsCall& call);

}  // namespace lapidary::cuda
