// Timing of CUDA kernels: graph replays over rotating inputs, medians of several.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace lapidary {

// Captures launch(0) .. launch(num_launches - 1) into a graph and returns the median time of a
// replay divided by the number of launches, in microseconds. Long graphs are replayed less often
// than `num_replays`, three times at least.
double TimeGraphUs(cudaStream_t stream, int num_launches, const std::function<void(int)>& launch,
                   int num_replays = 9);

// A stream of its own for as long as it lives.
class BenchStream {
 public:
  BenchStream();
  ~BenchStream();
  BenchStream(const BenchStream&) = delete;
  BenchStream& operator=(const BenchStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace lapidary
