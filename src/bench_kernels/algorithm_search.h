// Which of cuBLASLt's algorithms are faster than the one its heuristic takes.
#pragma once

#include <functional>

#include "bench_kernels/kernel_bench.h"
#include "bench_kernels/product_timer.h"

namespace lapidary {

AlgorithmSearch SearchWith(ProductTimer& timer, const std::vector<NamedPlan>& models,
                           const std::string& gpu,
                           const std::function<void(int64_t, int64_t)>& on_progress);

}  // namespace lapidary
