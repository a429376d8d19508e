// Routing and the chosen experts of a mixture model.
#pragma once

#include "bench_kernels/bench_sink.h"
#include "model/plan.h"

namespace lapidary {

void BenchExperts(const std::string& model, const ModelPlan& plan, const BenchSink& sink);

}  // namespace lapidary
