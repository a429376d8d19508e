#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/result.h"
#include "ops/cuda/moe/moe.h"

namespace lapidary::cuda {

Status MoeSupports(const MoeShape& shape) {
  if (shape.num_experts > kMaxExperts) {
    return MakeError("{} experts, more than {}", shape.num_experts, kMaxExperts);
  }
  if (shape.top_k > kMaxTopK || shape.top_k > shape.num_experts) {
    return MakeError("{} of {} experts at a time, more than {}", shape.top_k, shape.num_experts,
                     std::min(kMaxTopK, shape.num_experts));
  }
  if (shape.hidden % 8 != 0 || shape.hidden > kMaxMoeHidden) {
    return MakeError("a hidden size of {} is with experts no multiple of 8 up to {}", shape.hidden,
                     kMaxMoeHidden);
  }
  if (shape.width % 8 != 0) {
    return MakeError("experts of width {}, not a multiple of 8", shape.width);
  }
  // Kernels count the values of one expert's matrix, and those of all chosen rows, in 32 bits.
  constexpr int64_t kMaxValues = std::numeric_limits<int32_t>::max();
  if (int64_t{2} * shape.width * shape.hidden > kMaxValues) {
    return MakeError("experts of width {} at a hidden size of {} are larger than 2^31 weights",
                     shape.width, shape.hidden);
  }
  const int64_t widest = std::max(shape.width, shape.hidden);
  if (int64_t{shape.rows} * shape.top_k > kMaxValues / widest) {
    return MakeError("{} experts of width {} for each of {} rows (--max-num-batched-tokens)",
                     shape.top_k, shape.width, shape.rows);
  }
  return {};
}

}  // namespace lapidary::cuda
