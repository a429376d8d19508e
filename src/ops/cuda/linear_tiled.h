// Linear layers of many rows with exactly the sums of linear_skinny.h: for batch invariance.
#pragma once

#include "ops/cuda/linear_skinny.h"

namespace lapidary::cuda {

// Whether the tiles of a call are enough to keep the device busy.
bool TiledIsWorthwhile(const LinearCall& call);

// `plan` gives the order of the sums. The residual update, if any, is a launch of its own.
void RunTiled(const LaunchContext& context, const LinearCall& call, const SkinnyPlan& plan);

}  // namespace lapidary::cuda
