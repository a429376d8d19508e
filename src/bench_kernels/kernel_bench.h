// CUDA kernels timed at a model's shapes, set against their floors and against baselines.
//
// No CUDA types: a build without CUDA has the same functions, which say so.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "bench_kernels/kernel_row.h"
#include "model/plan.h"

namespace lapidary {

struct KernelBenchOptions {
  int gpu_ordinal = 0;
  std::string shapes;      // a regular expression; only rows whose label has a match
  std::vector<int> rows;   // of products and small kernels; empty: those of usual steps
  WeightFormat weights{};  // of products; others than bf16: only products are timed
  bool variants = false;   // also other ways to run the same kernels
  std::function<void(const KernelRow&)> on_row;  // as each is measured
};

struct KernelBenchResult {
  double copy_gbps = 0;  // of a large copy on the device, read plus written
  std::vector<KernelRow> rows;
};

Result<KernelBenchResult> BenchKernels(const std::string& model, const ModelPlan& plan,
                                       const KernelBenchOptions& options);

// cuBLASLt's candidates for the products of these models, at the rows of decode graphs and of
// prompts: the text of ops/cuda/linear/gemm_algorithms.inc.
struct AlgorithmSearch {
  std::string table;
  int num_products = 0;
  int num_kept = 0;
};
using NamedPlan = std::pair<std::string, ModelPlan>;
Result<AlgorithmSearch> SearchAlgorithms(const std::vector<NamedPlan>& models, int gpu_ordinal,
                                         const std::function<void(int64_t, int64_t)>& on_progress);

}  // namespace lapidary
