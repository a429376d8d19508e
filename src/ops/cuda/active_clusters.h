// How many clusters of a kernel's blocks an otherwise empty GPU runs at once.
#pragma once

#include <cstddef>

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

// 0: it has no clusters of this size.
int MaxActiveClusters(const DeviceInfo& device, const void* kernel, int cluster, int num_threads,
                      size_t shared_bytes);

}  // namespace lapidary::cuda
