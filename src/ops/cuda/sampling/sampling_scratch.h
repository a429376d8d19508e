// Device memory that sampling needs beside its operands, in closed form. No CUDA types: memory is
// planned where there is no GPU, too.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace lapidary::cuda {

inline constexpr int kRowBlock = 64;     // logits per maximum
inline constexpr int kMaxListed = 8192;  // candidates kept as a list; more are found again by scans

LAPIDARY_HOST_DEVICE inline int NumRowBlocks(int vocab_size) {
  return (vocab_size + kRowBlock - 1) / kRowBlock;
}

// Per logits row: block maxima, then the candidate list.
LAPIDARY_HOST_DEVICE inline int64_t RowScratchWords(int vocab_size) {
  return NumRowBlocks(vocab_size) + kMaxListed;
}

inline int64_t SamplingScratchBytes(int num_logits_rows, int vocab_size) {
  return int64_t{num_logits_rows} * RowScratchWords(vocab_size) *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace lapidary::cuda
