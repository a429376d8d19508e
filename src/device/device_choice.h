// Where a model runs: answers `--device auto|cpu|cuda|simulated` once, at start-up.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "device/device_probe.h"

namespace lapidary {

// kSimulated: no device at all; steps take as long as a GPU would (executor/simulated), whose
// limits and memory it has.
enum class DeviceKind { kCpu, kCuda, kSimulated };
enum class DeviceRequest { kAuto, kCpu, kCuda, kSimulated };

std::string_view DeviceName(DeviceKind kind);  // "CPU", "CUDA", "simulated"

// The facts that a choice rests on; tests make their own.
struct DeviceFacts {
  bool built_with_cuda = false;
  GpuList gpu_list;
};

// What is true of this program on this machine.
DeviceFacts ProbeDeviceFacts();

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  int gpu_ordinal = -1;  // the GPU to use; -1 for the CPU
  std::string reason;    // one clause for the log
};

// The rule, free of side effects. kCpu and kSimulated always succeed; kCuda yields the first GPU
// that can run our kernels or an error that says what is missing; kAuto takes CUDA where kCuda
// would succeed and the CPU everywhere else, with the obstacle as its reason.
Result<DeviceChoice> ChooseDevice(DeviceRequest request, const DeviceFacts& facts);

// The same for this program on this machine; logs what was chosen and why.
Result<DeviceChoice> ChooseDevice(DeviceRequest request);

}  // namespace lapidary
