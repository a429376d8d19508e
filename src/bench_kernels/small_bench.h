// Everything of a step but products, attention and experts: embeddings, norms, entries, sampling.
#pragma once

#include "bench_kernels/bench_sink.h"
#include "model/plan.h"

namespace lapidary {

void BenchSmall(const std::string& model, const ModelPlan& plan, const BenchSink& sink);

}  // namespace lapidary
