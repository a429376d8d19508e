#include "towers/tower_tensors.h"

#include <limits>

#include "towers/tower_specs.h"

namespace lapidary {

Result<TowerTensors> TowerTensors::Open(const std::filesystem::path& path,
                                        const std::vector<TensorSpec>& specs) {
  TowerTensors tensors;
  if (IsGgufFile(path)) {
    ASSIGN_OR_RETURN(MmprojTensors mmproj, MmprojTensors::Open(path));
    tensors.mmproj_ = std::make_shared<MmprojTensors>(std::move(mmproj));
  } else {
    ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(path));
    tensors.checkpoint_ = std::make_shared<Checkpoint>(std::move(checkpoint));
  }
  for (const TensorSpec& spec : specs) {
    const TensorView* tensor = tensors.Find(spec.name);
    if (tensor == nullptr) {
      if (MayBeMissing(spec)) continue;
      return MakeError("{}: tensor {} is missing, though its config describes the tower",
                       path.string(), spec.name);
    }
    if (tensor->shape != spec.shape) {
      return MakeError("{}: tensor {} has shape {}, its config asks for {}", path.string(),
                       spec.name, ShapeToString(tensor->shape), ShapeToString(spec.shape));
    }
    if (!IsWeightDType(tensor->dtype)) {
      return MakeError("{}: tensor {} is {}; weights must be BF16, F16 or F32", path.string(),
                       spec.name, DTypeName(tensor->dtype));
    }
  }
  return tensors;
}

const TensorView* TowerTensors::Find(const std::string& name) const {
  return mmproj_ != nullptr ? mmproj_->Find(name) : checkpoint_->Find(name);
}

MatrixRef TowerTensors::Matrix(const std::string& name) const {
  const TensorView* tensor = Find(name);
  CHECK(tensor != nullptr) << name;
  return MatrixOf(*tensor);
}

std::vector<float> TowerTensors::Vector(const std::string& name) const {
  const TensorView* tensor = Find(name);
  CHECK(tensor != nullptr) << name;
  return ToFloats(*tensor);
}

float TowerTensors::BoundOr(const std::string& name, float fallback) const {
  const TensorView* tensor = Find(name);
  return tensor == nullptr ? fallback : ToFloats(*tensor)[0];
}

ClippedMatrix TowerTensors::Clipped(const std::string& name) const {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return {Matrix(name + ".linear.weight"), BoundOr(name + ".input_min", -kInfinity),
          BoundOr(name + ".input_max", kInfinity), BoundOr(name + ".output_min", -kInfinity),
          BoundOr(name + ".output_max", kInfinity)};
}

}  // namespace lapidary
