// Device memory that attention needs beside its operands, in closed form. No CUDA types: memory is
// planned where there is no GPU, too.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/attention_work.h"

namespace lapidary::cuda {

// Of one partial result: for each row the widest value, a maximum and a sum.
inline constexpr int kAttentionSlotFloats = kAttentionPartialRows * (512 + 2);
// Running totals of the blocks of one SM, of the form that has most
// (AttentionForm::kCombineFloats).
inline constexpr int kAttentionCombineFloats = 8 * 256 * (4 + 256 / 8 / 8 * 4);

// Running totals of all blocks, whatever the form.
constexpr int64_t AttentionCombineFloats(int num_sms) {
  return int64_t{num_sms} * kAttentionCombineFloats;
}

// Bytes of the buffer for so many partial results (16 rows each), and for the blocks' own running
// totals, which only batch_invariant needs.
constexpr int64_t AttentionPartialBytes(int num_sms, int max_partials, bool batch_invariant) {
  const int64_t floats = (batch_invariant ? AttentionCombineFloats(num_sms) : 0) +
                         int64_t{max_partials} * kAttentionSlotFloats;
  return floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace lapidary::cuda
