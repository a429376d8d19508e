// Which models the CUDA executor can run: those that every kernel it launches supports.
#pragma once

#include "base/result.h"
#include "model/plan.h"

namespace lapidary::cuda {

// An error says in one sentence what the kernels lack. Needs no GPU. `max_rows`: of a step.
Status CheckSupported(const ModelPlan& plan, int max_rows);
// An assistant that is paired with its target.
Status CheckSupported(const AssistantPlan& plan);

}  // namespace lapidary::cuda
