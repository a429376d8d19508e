#include "model/weights.h"

#include "model/bind_weights.h"

namespace lapidary {

Result<std::vector<MatrixRef>> TensorSource::GetStored(const TensorSpec& spec) const {
  ASSIGN_OR_RETURN(const TensorView tensor, Get(spec));
  return std::vector<MatrixRef>{MatrixOf(tensor)};
}

Result<MatrixRef> HostStorage::GetMatrix(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(const std::vector<MatrixRef> parts, source_.GetStored(spec));
  if (parts.size() != 1) {
    return MakeError("{} is {} matrices, which must become one first", spec.name, parts.size());
  }
  return parts.front();
}

Result<std::vector<float>> HostStorage::GetVector(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(const TensorView tensor, source_.Get(spec));
  return ToFloats(tensor);
}

Result<float> HostStorage::GetScalar(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(const std::vector<float> values, GetVector(spec));
  return values.at(0);
}

Result<ModelWeights> BindWeights(const ModelPlan& plan, const TensorSource& source) {
  HostStorage storage(source);
  return BindWeightsTo(plan, storage);
}

Result<AssistantWeights> BindWeights(const AssistantPlan& plan, const TensorSource& source) {
  HostStorage storage(source);
  return BindWeightsTo(plan, storage);
}

}  // namespace lapidary
