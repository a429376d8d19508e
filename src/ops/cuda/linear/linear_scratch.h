// Device memory that linear layers need beside their operands, in closed form. No CUDA types:
// memory is planned where there is no GPU, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lapidary::cuda {

inline constexpr int64_t kGemmWorkspaceBytes = int64_t{64} << 20;  // cuBLASLt's own

// The product before gelu(gate) * up needs a buffer; larger calls are cut into rows that fit.
constexpr int64_t GatedProductBytes(int64_t max_rows) {
  constexpr int64_t kBytesPerRow = int64_t{128} << 10;
  constexpr int64_t kMaxBytes = int64_t{256} << 20;
  return std::min(kMaxBytes, max_rows * kBytesPerRow);
}

// Rows of such a call at a time: equal parts, so that none is a sliver. 0: not even one row fits.
constexpr int GatedPartRows(int rows, int out_dim, int64_t num_bytes) {
  constexpr int64_t kBytesPerValue = 2;
  const int64_t rows_at_once = num_bytes / (kBytesPerValue * out_dim);
  if (rows_at_once == 0) return 0;
  const int64_t num_parts = (rows + rows_at_once - 1) / rows_at_once;
  return static_cast<int>((rows + num_parts - 1) / num_parts);
}

// All of a LinearRunner. Where a row's result must depend on that row alone cuBLASLt is not used.
constexpr int64_t LinearScratchBytes(int64_t max_rows, bool batch_invariant) {
  return batch_invariant ? 0 : kGemmWorkspaceBytes + GatedProductBytes(max_rows);
}

}  // namespace lapidary::cuda
