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

}  // namespace lapidary
