#include "bench_kernels/kernel_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "device/cuda_error.h"

namespace lapidary {

double TimeGraphUs(cudaStream_t stream, int num_launches, const std::function<void(int)>& launch,
                   int num_replays) {
  launch(0);  // what is loaded at the first use is loaded before the capture
  LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  LAPIDARY_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < num_launches; ++i) launch(i);
  LAPIDARY_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  LAPIDARY_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  LAPIDARY_CUDA_CHECK(cudaEventCreate(&begin));
  LAPIDARY_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int replay = -2; replay < num_replays; ++replay) {
    LAPIDARY_CUDA_CHECK(cudaEventRecord(begin, stream));
    LAPIDARY_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    LAPIDARY_CUDA_CHECK(cudaEventRecord(end, stream));
    LAPIDARY_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    LAPIDARY_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (replay >= 0) times.push_back(ms);
  }
  LAPIDARY_CUDA_CHECK(cudaEventDestroy(begin));
  LAPIDARY_CUDA_CHECK(cudaEventDestroy(end));
  LAPIDARY_CUDA_CHECK(cudaGraphExecDestroy(executable));
  LAPIDARY_CUDA_CHECK(cudaGraphDestroy(graph));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2] * 1e3 / num_launches;
}

KernelRow MakeLinearRow(std::string name, std::string variant, int rows, int in_dim, int out_dim,
                        double us) {
  const double weight_bytes = 2.0 * in_dim * out_dim;
  KernelRow row{.name = std::move(name),
                .shape = fmt::format("{}x{}", in_dim, out_dim),
                .variant = std::move(variant),
                .rows = rows,
                .us = us};
  row.gbps = weight_bytes / us * 1e-3;
  row.tflops = 2.0 * rows * in_dim * out_dim / us * 1e-6;
  row.floor_share = weight_bytes / kFloorBytesPerSecond * 1e6 / us;
  return row;
}

std::string ToJson(const std::vector<KernelRow>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const KernelRow& row : rows) {
    list.push_back({{"name", row.name},
                    {"shape", row.shape},
                    {"variant", row.variant},
                    {"rows", row.rows},
                    {"us", row.us},
                    {"gbps", row.gbps},
                    {"tflops", row.tflops},
                    {"floor_share", row.floor_share},
                    {"baseline_us", row.baseline_us}});
  }
  return list.dump(1) + "\n";
}

}  // namespace lapidary
