// A kernel that does nothing but what every kernel of a step does: what a launch itself costs.
#pragma once

#include "ops/cuda/launch.h"

namespace lapidary {

void LaunchEmpty(const cuda::LaunchContext& context);

}  // namespace lapidary
