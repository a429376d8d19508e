#include "bench_kernels/kernel_timing.h"

#include <algorithm>
#include <vector>

#include "device/cuda_error.h"

namespace lapidary {
namespace {

constexpr double kEnoughMs = 60.0;  // of replays that are measured

}  // namespace

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
  double spent_ms = 0.0;
  for (int replay = -2; replay < num_replays && (replay < 3 || spent_ms < kEnoughMs); ++replay) {
    LAPIDARY_CUDA_CHECK(cudaEventRecord(begin, stream));
    LAPIDARY_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    LAPIDARY_CUDA_CHECK(cudaEventRecord(end, stream));
    LAPIDARY_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    LAPIDARY_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (replay < 0) continue;  // warm-up
    times.push_back(ms);
    spent_ms += ms;
  }
  LAPIDARY_CUDA_CHECK(cudaEventDestroy(begin));
  LAPIDARY_CUDA_CHECK(cudaEventDestroy(end));
  LAPIDARY_CUDA_CHECK(cudaGraphExecDestroy(executable));
  LAPIDARY_CUDA_CHECK(cudaGraphDestroy(graph));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2] * 1e3 / num_launches;
}

}  // namespace lapidary
