#include "bench_kernels/kernel_bench.h"

#include <cuda_runtime_api.h>

#include <regex>

#include "bench_kernels/algorithm_search.h"
#include "bench_kernels/attention_bench.h"
#include "bench_kernels/expert_bench.h"
#include "bench_kernels/linear_bench.h"
#include "bench_kernels/small_bench.h"
#include "device/cuda_error.h"

namespace lapidary {
namespace {

constexpr int kUsualRows[] = {1, 4, 8, 16, 32, 64, 80, 128, 256, 512, 2048};

}  // namespace

Result<KernelBenchResult> BenchKernels(const std::string& model, const ModelPlan& plan,
                                       const KernelBenchOptions& options) {
  std::regex shapes;
  try {
    shapes = std::regex(options.shapes, std::regex::extended);
  } catch (const std::regex_error&) {
    return MakeError("--shapes '{}' is not a regular expression", options.shapes);
  }
  KernelBenchResult result;
  BenchSink sink;
  sink.variants = options.variants;
  sink.rows = options.rows;
  if (sink.rows.empty()) sink.rows.assign(std::begin(kUsualRows), std::end(kUsualRows));
  for (const int rows : sink.rows) {
    if (rows < 1 || rows > ProductTimer::kMaxRows) {
      return MakeError("--rows {}: must be from 1 to {}", rows, ProductTimer::kMaxRows);
    }
  }
  sink.wants = [&](const KernelRow& row) { return std::regex_search(row.label(), shapes); };
  sink.add = [&](KernelRow row) {
    if (options.on_row) options.on_row(row);
    result.rows.push_back(std::move(row));
  };
  try {
    LAPIDARY_CUDA_CHECK(cudaSetDevice(options.gpu_ordinal));
    sink.device = DescribeDevice(options.gpu_ordinal);
    {
      ProductTimer timer(sink.device);
      result.copy_gbps = timer.CopyGbps();
      BenchLinear(model, plan, timer, sink, options.weights);
    }
    if (options.weights == WeightFormat{}) {
      BenchAttention(model, plan, sink);
      BenchExperts(model, plan, sink);
      BenchSmall(model, plan, sink);
    }
  } catch (const CudaError& error) {
    return MakeError("{}", error.what());
  }
  if (result.rows.empty()) {
    return MakeError("--shapes '{}' matches no kernel; without it all are listed", options.shapes);
  }
  return result;
}

Result<AlgorithmSearch> SearchAlgorithms(const std::vector<NamedPlan>& models, int gpu_ordinal,
                                         const std::function<void(int64_t, int64_t)>& on_progress) {
  try {
    LAPIDARY_CUDA_CHECK(cudaSetDevice(gpu_ordinal));
    const DeviceInfo device = DescribeDevice(gpu_ordinal);
    ProductTimer timer(device);
    return SearchWith(timer, models, device.name, on_progress);
  } catch (const CudaError& error) {
    return MakeError("{}", error.what());
  }
}

}  // namespace lapidary
