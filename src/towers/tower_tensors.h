// The encoders' tensors of one checkpoint directory or mmproj file, checked against the plan when
// they are opened.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "gguf/mmproj.h"
#include "model/tensor_specs.h"
#include "tensor/matrix_ref.h"

namespace lapidary {

// y = clamp(W clamp(x, input), output); infinite bounds clamp nothing.
struct ClippedMatrix {
  MatrixRef weight;
  float input_min = 0.0f;
  float input_max = 0.0f;
  float output_min = 0.0f;
  float output_max = 0.0f;
};

// Owns the mapping that matrices point into. Names are those of the specs; any other is a bug.
class TowerTensors {
 public:
  // An error when a tensor is missing, has another shape than the plan's or is no weight.
  static Result<TowerTensors> Open(const std::filesystem::path& path,
                                   const std::vector<TensorSpec>& specs);

  MatrixRef Matrix(const std::string& name) const;           // the last dim is a row
  std::vector<float> Vector(const std::string& name) const;  // of any shape
  // `name`.linear.weight and the bounds beside it.
  ClippedMatrix Clipped(const std::string& name) const;

 private:
  const TensorView* Find(const std::string& name) const;
  float BoundOr(const std::string& name, float fallback) const;

  // One of the two.
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::shared_ptr<const MmprojTensors> mmproj_;
};

}  // namespace lapidary
