#include "executor/cuda/resident_steps.h"

#include <cstddef>
#include <vector>

namespace lapidary::cuda {
namespace {

constexpr const char* kPurpose = "one-token steps";

}  // namespace

std::unique_ptr<ResidentSteps> ResidentSteps::Create(const DeviceInfo& device,
                                                     const DecoderProgram& program) {
  if (!ResidentStepSupports(device, program)) return nullptr;
  return std::unique_ptr<ResidentSteps>(new ResidentSteps(device, program));
}

ResidentSteps::ResidentSteps(const DeviceInfo& device, const DecoderProgram& program)
    : widths_(program), scratch_(ResidentScratchBytes(device, program), kPurpose) {
  LAPIDARY_CUDA_CHECK(cudaMemset(scratch_.As<void>(), 0, scratch_.num_bytes()));
  const std::vector<std::byte> bytes = MakeResidentProgram(device, program, scratch_.As<void>());
  program_ = DeviceBuffer(static_cast<int64_t>(bytes.size()), kPurpose);
  LAPIDARY_CUDA_CHECK(
      cudaMemcpy(program_.As<void>(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
}

void ResidentSteps::Run(const LaunchContext& context, ResidentStepCall call) const {
  call.program = program_.As<void>();
  RunResidentStep(context, widths_, call);
}

}  // namespace lapidary::cuda
