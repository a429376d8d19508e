// The rows of a sampling call as its kernels see them: which sampled row a block stands for, its
// logits, its scratch, what its slot has said.
#pragma once

#include "ops/cuda/sampling/sampling.h"
#include "ops/cuda/sampling/sampling_select.cuh"

namespace lapidary::cuda {

inline constexpr int kScanThreads = 256;

// The sampled row that a row of the call draws for, and its place among them.
struct CallRow {
  int index;
  SamplingRow spec;
};
__device__ inline CallRow RowOfCall(const SamplingCall& call, int row) {
  if (call.draft.rounds == nullptr) return {row, call.spec[row]};
  CallRow at;
  at.index = call.draft.rounds[row].first_sampled + call.draft.draft_idx;
  at.spec = call.spec[at.index];
  at.spec.logits_row = row;
  at.spec.mask_row = -1;
  return at;
}

__device__ inline bool IsHere(const SamplingCall& call, const SamplingRow& spec) {
  return spec.logits_row >= call.first_logits_row &&
         spec.logits_row < call.first_logits_row + call.num_logits_rows;
}

__device__ inline float* RowLogits(const SamplingCall& call, const SamplingRow& spec) {
  return call.logits + int64_t{spec.logits_row - call.first_logits_row} * call.vocab_size;
}

__device__ inline LogitRow RowToDraw(const SamplingCall& call, const SamplingRow& spec) {
  const int64_t words = MaskWords(call.vocab_size);
  return {RowLogits(call, spec), spec.mask_row < 0 ? nullptr : call.masks + spec.mask_row * words};
}

__device__ inline bool WantsLogprobs(const SamplingCall& call, const SamplingRow& spec) {
  return spec.scored_id >= 0 || call.slots[spec.slot].num_logprobs >= 0;
}

__device__ inline float* BlockMaxima(const SamplingCall& call, const SamplingRow& spec) {
  return static_cast<float*>(call.scratch) +
         int64_t{spec.logits_row - call.first_logits_row} * RowScratchWords(call.vocab_size);
}

__device__ inline SamplingHistory* History(const SamplingCall& call, const SamplingSlot& slot) {
  return reinterpret_cast<SamplingHistory*>(call.lists + slot.history_begin);
}

}  // namespace lapidary::cuda
