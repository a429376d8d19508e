// A plan as a GGUF file's metadata: what ConfigFromGguf reads back.
#pragma once

#include <vector>

#include "gguf/gguf_writer.h"
#include "model/plan.h"

namespace lapidary {

void AddPlanMetadata(const ModelPlan& plan, GgufWriter& writer);
// Of an assistant with a dense head: what AssistantConfigFromGguf reads back.
void AddPlanMetadata(const AssistantPlan& plan, GgufWriter& writer);

// The values of rope_freqs.weight: 1 for the pairs of a full layer that turn, 1e30 for the others.
std::vector<float> RopeFactors(const ModelPlan& plan);

}  // namespace lapidary
