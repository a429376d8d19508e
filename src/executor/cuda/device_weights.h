// The weights on the GPU, in the formats of a plan: matrices and f32 vectors in two allocations,
// uploaded once or made there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "device/device_memory.h"
#include "executor/cuda/cuda_options.h"
#include "executor/cuda/memory_needs.h"
#include "model/weight_plan.h"
#include "model/weights.h"
#include "ops/cuda/launch.h"

namespace lapidary::cuda {

class DeviceStorage {
 public:
  using Vector = const float*;
  static constexpr bool kStacksRows = true;

  // Weights of a source, which need not outlive the binding; or synthetic ones without a source.
  DeviceStorage(WeightPlan plan, const TensorSource* source, uint64_t dummy_seed,
                PlePlacement ple_placement, const LaunchContext& context);
  ~DeviceStorage();

  Result<MatrixRef> GetMatrix(const TensorSpec& spec);
  Result<Vector> GetVector(const TensorSpec& spec);
  Result<float> GetScalar(const TensorSpec& spec);

  // All uploads are done; staging memory and the source are no longer needed.
  void Finish();

  int64_t device_bytes() const { return matrices_.num_bytes() + vectors_.num_bytes(); }
  int64_t host_bytes() const { return ple_table_.num_bytes(); }

 private:
  Result<std::vector<float>> Floats(const TensorSpec& spec);
  // Repacks a stored matrix, or what it is rounded to, into the format of the plan, a staging piece
  // at a time.
  void Upload(const MatrixRef& stored, std::optional<DType> rounding, const WeightFormat& format,
              std::byte* to);

  const WeightPlan plan_;
  const TensorSource* source_;
  const uint64_t dummy_seed_;
  const PlePlacement ple_placement_;
  const LaunchContext context_;
  DeviceBuffer matrices_;
  DeviceBuffer vectors_;
  PinnedBuffer ple_table_;
  int64_t matrix_end_ = 0;  // bytes handed out so far
  int64_t vector_end_ = 0;

  // Two pieces of page-locked memory: one is filled while the other is on its way.
  struct Staging;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Progress> progress_;
};

using DeviceWeights = ModelWeightsOf<DeviceStorage>;

}  // namespace lapidary::cuda
