// Attention at a model's shapes: decode, verification of drafts, prompts.
#pragma once

#include "bench_kernels/bench_sink.h"
#include "model/plan.h"

namespace lapidary {

void BenchAttention(const std::string& model, const ModelPlan& plan, const BenchSink& sink);

}  // namespace lapidary
