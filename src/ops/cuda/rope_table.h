// The size of a rotary table. No CUDA types: memory is planned where there is no GPU, too.
#pragma once

#include "base/host_device.h"

namespace lapidary::cuda {

// Rows have room for so many pairs: each is 16-byte aligned, as readers want it.
LAPIDARY_HOST_DEVICE constexpr int RopeRowPairs(int pairs) { return (pairs + 1) / 2 * 2; }

}  // namespace lapidary::cuda
