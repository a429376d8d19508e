// Where a model runs: answers `--device auto|cpu|cuda` once, at start-up.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "device/device_probe.h"

namespace lapidary {

enum class DeviceKind { kCpu, kCuda };
enum class DeviceRequest { kAuto, kCpu, kCuda };

std::string_view DeviceName(DeviceKind kind);  // "CPU", "CUDA"

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

// The rule, free of side effects. kCpu always succeeds; kCuda yields the first GPU that can run our
// kernels or an error that says what is missing; kAuto takes CUDA where kCuda would succeed and the
// CPU everywhere else, with the obstacle as its reason.
Result<DeviceChoice> ChooseDevice(DeviceRequest request, const DeviceFacts& facts);

// The same for this program on this machine; logs what was chosen and why.
Result<DeviceChoice> ChooseDevice(DeviceRequest request);

}  // namespace lapidary
