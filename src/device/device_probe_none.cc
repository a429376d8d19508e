#include "device/device_probe.h"

namespace lapidary {

bool BuiltWithCuda() { return false; }

GpuList ListGpus() { return {.gpus = {}, .problem = "this build has no CUDA part"}; }

}  // namespace lapidary
