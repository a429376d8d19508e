// One-token steps as one kernel (ops/cuda/resident/resident_step.h), for the programs that it can
// run.
#pragma once

#include <memory>

#include "device/device_memory.h"
#include "ops/cuda/resident/resident_step.h"

namespace lapidary::cuda {

class ResidentSteps {
 public:
  // Null: the kernel cannot run the program there.
  static std::unique_ptr<ResidentSteps> Create(const DeviceInfo& device,
                                               const DecoderProgram& program);

  // The program is set here.
  void Run(const LaunchContext& context, ResidentStepCall call) const;

  int64_t num_bytes_for_test() const { return scratch_.num_bytes() + program_.num_bytes(); }

 private:
  ResidentSteps(const DeviceInfo& device, const DecoderProgram& program);

  const ResidentWidths widths_;
  DeviceBuffer scratch_;
  DeviceBuffer program_;
};

}  // namespace lapidary::cuda
