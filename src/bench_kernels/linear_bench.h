// Linear layers at a model's shapes: our calls against cuBLASLt's product alone and, with variants,
// other plans of the streaming and the wgmma kernel and the linear calls of a layer as one chain.
#pragma once

#include "bench_kernels/bench_sink.h"
#include "bench_kernels/product_timer.h"

namespace lapidary {

void BenchLinear(const std::string& model, const ModelPlan& plan, ProductTimer& timer,
                 const BenchSink& sink, const WeightFormat& weights);

}  // namespace lapidary
