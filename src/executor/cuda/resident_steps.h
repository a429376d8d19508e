// One-token steps as one kernel (ops/cuda/resident/resident_step.h), for the models that it can
// run.
#pragma once

#include <memory>
#include <vector>

#include "device/device_memory.h"
#include "executor/cuda/device_weights.h"
#include "kv/kv_layout.h"
#include "model/plan.h"
#include "ops/cuda/resident/resident_step.h"

namespace lapidary::cuda {

// `rope`: by layer, the tables of a step; `ple_inputs`: [layers, width] of its only row.
ResidentModel DescribeResidentModel(const ModelPlan& plan, const DeviceWeights& weights,
                                    const KvLayout& layout, const std::vector<const float2*>& rope,
                                    const bf16* ple_inputs);

class ResidentSteps {
 public:
  // Null: the kernel cannot run the model there.
  static std::unique_ptr<ResidentSteps> Create(const DeviceInfo& device, ResidentModel model);

  // The program is set here.
  void Run(const LaunchContext& context, ResidentStepCall call) const;

 private:
  ResidentSteps(const DeviceInfo& device, ResidentModel model);

  const ResidentModel model_;
  DeviceBuffer scratch_;
  DeviceBuffer program_;
};

}  // namespace lapidary::cuda
