#include "device/device_choice.h"

#include <spdlog/spdlog.h>

namespace lapidary {
namespace {

// The kernels are compiled for sm_90a, whose code runs on compute capability 9.0 and no other,
// older or newer (cmake/LapidaryCuda.cmake).
constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;

bool RunsOurKernels(const GpuInfo& gpu) {
  return gpu.compute_major == kComputeMajor && gpu.compute_minor == kComputeMinor;
}

std::string Describe(const GpuInfo& gpu) {
  return fmt::format("GPU {} ({}, {:.0f} GiB, compute capability {}.{})", gpu.ordinal, gpu.name,
                     static_cast<double>(gpu.memory_bytes) / (1 << 30), gpu.compute_major,
                     gpu.compute_minor);
}

Result<DeviceChoice> ChooseCuda(const DeviceFacts& facts) {
  if (!facts.built_with_cuda) {
    return MakeError("this build has no CUDA part (build with LAPIDARY_CUDA=1)");
  }
  if (facts.gpu_list.gpus.empty()) {
    return MakeError("no usable GPU ({})", facts.gpu_list.problem);
  }
  for (const GpuInfo& gpu : facts.gpu_list.gpus) {
    if (RunsOurKernels(gpu)) {
      return DeviceChoice{
          .kind = DeviceKind::kCuda, .gpu_ordinal = gpu.ordinal, .reason = Describe(gpu)};
    }
  }
  return MakeError("{} cannot run kernels built for compute capability {}.{} (Hopper)",
                   Describe(facts.gpu_list.gpus.front()), kComputeMajor, kComputeMinor);
}

}  // namespace

std::string_view DeviceName(DeviceKind kind) {
  if (kind == DeviceKind::kSimulated) return "simulated";
  return kind == DeviceKind::kCpu ? "CPU" : "CUDA";
}

DeviceFacts ProbeDeviceFacts() {
  return {.built_with_cuda = BuiltWithCuda(), .gpu_list = ListGpus()};
}

Result<DeviceChoice> ChooseDevice(DeviceRequest request, const DeviceFacts& facts) {
  if (request == DeviceRequest::kCpu) return DeviceChoice{.reason = "asked for"};
  if (request == DeviceRequest::kSimulated) {
    return DeviceChoice{.kind = DeviceKind::kSimulated, .reason = "asked for"};
  }
  Result<DeviceChoice> cuda = ChooseCuda(facts);
  if (cuda.ok()) return cuda;
  if (request == DeviceRequest::kAuto) return DeviceChoice{.reason = cuda.error().message};
  return MakeError("--device cuda: {}", cuda.error().message);
}

Result<DeviceChoice> ChooseDevice(DeviceRequest request) {
  // Only where a GPU is asked for the driver is woken.
  const bool asks_for_gpu = request == DeviceRequest::kAuto || request == DeviceRequest::kCuda;
  const DeviceFacts facts = asks_for_gpu ? ProbeDeviceFacts() : DeviceFacts{};
  ASSIGN_OR_RETURN(DeviceChoice choice, ChooseDevice(request, facts));
  spdlog::info("device: {} ({}{})", DeviceName(choice.kind),
               request == DeviceRequest::kAuto ? "auto: " : "", choice.reason);
  return choice;
}

}  // namespace lapidary
