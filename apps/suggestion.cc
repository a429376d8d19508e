#include "apps/suggestion.h"

#include <errno.h>
#include <fmt/format.h>

#include "base/memory_limit.h"
#include "device/device_choice.h"
#include "hub/known_models.h"

namespace lapidary {
namespace {

// Of the GPU that --device auto takes; 0: it takes the CPU.
int64_t GpuMemory() {
  const DeviceFacts facts = ProbeDeviceFacts();
  const auto choice = ChooseDevice(DeviceRequest::kAuto, facts);
  if (!choice.ok() || choice->kind != DeviceKind::kCuda) return 0;
  for (const GpuInfo& gpu : facts.gpu_list.gpus) {
    if (gpu.ordinal == choice->gpu_ordinal) return gpu.memory_bytes;
  }
  return 0;
}

}  // namespace

std::string SuggestedCommand(const std::string& command) {
  const auto suggestion = hub::SuggestModel(GpuMemory(), MemoryLimit());
  if (!suggestion) return {};
  return fmt::format("; try: {} {} {}, {:.1f} GB", program_invocation_name, command,
                     suggestion->name, 1e-9 * static_cast<double>(suggestion->num_bytes));
}

}  // namespace lapidary
