// Synthetic weights made where they are used.
#pragma once

#include <cstdint>

#include "model/synthetic_law.h"
#include "ops/cuda/launch.h"

namespace lapidary::cuda {

// to[i] = element i of the law, rounded to bf16: bit for bit what the host makes.
void RunFillSynthetic(const LaunchContext& context, const SyntheticLaw& law, int64_t count,
                      bf16* to);

}  // namespace lapidary::cuda
