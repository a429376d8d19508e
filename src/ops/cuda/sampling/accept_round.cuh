// What a round of drafts comes to: the rows that count, and where its slot stands behind them.
#pragma once

#include "ops/cuda/sampling/sampling_rows.cuh"
#include "sampling/accept.h"
#include "sampling/simulated_acceptance.h"

namespace lapidary::cuda {

// Counts a token as said; all threads of the block.
__device__ inline void AddToHistory(const SamplingCall& call, const SamplingSlot& slot,
                                    SlotState& state, int32_t id) {
  SamplingHistory* history = History(call, slot);
  const int num_history = state.num_history;
  bool is_listed = false;
  for (int idx = threadIdx.x; idx < num_history; idx += blockDim.x) {
    if (history[idx].id != id) continue;
    ++history[idx].output_count;
    is_listed = true;
  }
  if (__syncthreads_or(is_listed)) return;
  if (threadIdx.x == 0 && num_history < slot.history_capacity) {
    history[num_history] = {id, 1};
    state.num_history = num_history + 1;
  }
  __syncthreads();
}

// Rows of a round that count by the dice; the drafts among them become its tokens.
__device__ inline int SimulateAcceptance(const SamplingCall& call, int row,
                                         const SamplingSlot& slot) {
  const auto draft_of = [&](int idx) { return call.spec[row + idx].draft; };
  const auto token_of = [&](int idx) {
    const uint64_t number = DrawNumber(call.spec[row + idx].position, slot.prompt_len);
    const bool accepts =
        idx < call.num_simulated && SimulatesAccept(call.simulated_rates[idx], slot.seed, number);
    return accepts ? draft_of(idx) : -1;
  };
  const int num_accepted = NumAcceptedRows(call.spec[row].num_drafts, token_of, draft_of);
  for (int idx = threadIdx.x; idx + 1 < num_accepted; idx += blockDim.x) {
    call.out[row + idx].id = draft_of(idx);
  }
  __syncthreads();
  return num_accepted;
}

__device__ inline int AcceptTokens(const SamplingCall& call, int row) {
  return NumAcceptedRows(
      call.spec[row].num_drafts, [&](int idx) { return call.out[row + idx].id; },
      [&](int idx) { return call.spec[row + idx].draft; });
}

// Moves a slot on behind the rows of a round that count; all threads of the block, which see the
// round's results. `row` is its first.
__device__ inline void AcceptRound(const SamplingCall& call, int row) {
  const SamplingRow& first = call.spec[row];
  const int num_accepted = call.simulated_rates != nullptr && first.mask_row < 0
                               ? SimulateAcceptance(call, row, call.slots[first.slot])
                               : AcceptTokens(call, row);
  const SamplingSlot& slot = call.slots[first.slot];
  SlotState& state = call.states[first.slot];
  if (slot.has_penalties) {
    for (int idx = 0; idx < num_accepted; ++idx) {
      const int32_t id = call.out[row + idx].id;
      if (id >= 0) AddToHistory(call, slot, state, id);
    }
  }
  if (threadIdx.x != 0) return;
  const int32_t last = call.out[row + num_accepted - 1].id;
  state.last_token = last < 0 ? 0 : last;
  state.length =
      LengthAfter(first.position, first.num_drafts + 1, first.num_drafts + 1, num_accepted);
  call.out[row].num_accepted = num_accepted;
}

}  // namespace lapidary::cuda
