#include "ops/cuda/linear/gemm_algorithms.h"

#include <algorithm>

namespace lapidary::cuda {
namespace {

#define LAPIDARY_GEMM_VERSION(version) constexpr size_t kVersion = version;
#define LAPIDARY_GEMM_ALGORITHM(...)
#include "ops/cuda/linear/gemm_algorithms.inc"
#undef LAPIDARY_GEMM_VERSION
#undef LAPIDARY_GEMM_ALGORITHM

#define LAPIDARY_GEMM_VERSION(version)
#define LAPIDARY_GEMM_ALGORITHM(out_dim, in_dim, rows, f32_output, ...) \
  GemmAlgorithm{{out_dim, in_dim, rows, f32_output}, {__VA_ARGS__}},

}  // namespace

int GemmRowBucket(int rows) {
  const int step = rows <= 64 ? 8 : rows <= 128 ? 16 : rows <= 512 ? 32 : rows <= 1024 ? 128 : 1024;
  return (rows + step - 1) / step * step;
}

size_t GemmTableVersion() { return kVersion; }

const std::vector<GemmAlgorithm>& GemmTable() {
  static const std::vector<GemmAlgorithm> table = {
#include "ops/cuda/linear/gemm_algorithms.inc"
  };
  return table;
}

const GemmAlgorithm* FindGemmAlgorithm(const GemmShape& shape) {
  const std::vector<GemmAlgorithm>& table = GemmTable();
  const auto found = std::lower_bound(
      table.begin(), table.end(), shape,
      [](const GemmAlgorithm& entry, const GemmShape& wanted) { return entry.shape < wanted; });
  return found != table.end() && found->shape == shape ? &*found : nullptr;
}

}  // namespace lapidary::cuda
