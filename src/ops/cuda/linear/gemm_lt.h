// y = x W^T through cuBLASLt, for the row counts at which it is the best there is.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "device/device_memory.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/linear/gemm_algorithms.h"
#include "ops/cuda/linear/linear_scratch.h"

namespace lapidary::cuda {

class GemmLt {
 public:
  static constexpr int64_t kWorkspaceBytes = kGemmWorkspaceBytes;

  // Algorithms are chosen for multiples of `row_step` rows; 0: for the ends of GemmRowBuckets.
  explicit GemmLt(int row_step = 0);
  ~GemmLt();
  GemmLt(const GemmLt&) = delete;
  GemmLt& operator=(const GemmLt&) = delete;

  // x [rows, in_dim] and weight [out_dim, in_dim] bf16; y [rows, out_dim] bf16 or f32. The first
  // call of a shape takes an algorithm from the table or asks cuBLASLt for one (host work only)
  // and keeps it. `batch` such products lie one behind the other: weights, inputs and results.
  void Run(cudaStream_t stream, const bf16* weight, const bf16* x, void* y, bool f32_output,
           int out_dim, int in_dim, int rows, int batch = 1);

  // Chooses what products of so few to so many rows will take and has the driver load it: the first
  // launch of a kernel waits for all that is under way. Runs nothing.
  void Load(const bf16* weight, bool f32_output, int out_dim, int in_dim, int fewest_rows,
            int most_rows);

  // For benchmarks and tests: the table's algorithm, if there is one that this cuBLASLt takes; the
  // algorithms cuBLASLt would try for a shape, best guess first; and a run with one of them, false
  // where it cannot run.
  std::optional<cublasLtMatmulAlgo_t> FromTable(const GemmShape& shape);
  std::vector<cublasLtMatmulAlgo_t> Candidates(bool f32_output, int out_dim, int in_dim, int rows,
                                               int max_candidates);
  bool RunWith(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, const bf16* weight,
               const bf16* x, void* y, bool f32_output, int out_dim, int in_dim, int rows,
               int batch = 1);

 private:
  // out_dim, in_dim, the rows it is chosen for, f32 output, aligned output, batch
  using Key = std::tuple<int, int, int, bool, bool, int>;

  // The algorithm of a key, chosen for so many rows where it is a new one.
  const cublasLtMatmulAlgo_t& Find(const Key& key, int rows);
  cublasLtMatmulAlgo_t Choose(const Key& key, int rows);
  std::vector<cublasLtMatmulAlgo_t> Search(const Key& key, int rows, int max_candidates);

  const int row_step_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  DeviceBuffer workspace_;
  bool uses_table_ = false;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace lapidary::cuda
