#include "model/weight_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace lapidary {
namespace {

std::string NameOf(const PlannedWeight& weight) {
  if (weight.spec.role == TensorRole::kRouter) return "router";
  switch (weight.spec.component) {
    case TensorComponent::kEmbedding:
      return "embeddings";
    case TensorComponent::kHead:
      return "head";
    case TensorComponent::kPerLayerEmbedding:
      return "per-layer embeddings";
    case TensorComponent::kPerLayerProjection:
      return "per-layer projection";
    case TensorComponent::kAttention:
      return "attention";
    case TensorComponent::kMlp:
      return "MLP";
    case TensorComponent::kExperts:
      return "experts";
    case TensorComponent::kLayerOther:
      return "per-layer gates";
    case TensorComponent::kFinalNorm:
    case TensorComponent::kTower:
      break;
  }
  return "other";
}

std::string KernelsOf(const PlannedWeight& weight) {
  if (weight.spec.component == TensorComponent::kPerLayerEmbedding) return "gathered rows";
  if (weight.loaded.is_plain()) return fmt::format("{} values", DTypeName(weight.loaded.unit));
  return fmt::format("{}-bit codes", CodeBits(weight.loaded.code));
}

}  // namespace

std::vector<WeightRow> TabulateWeights(const WeightPlan& plan) {
  std::vector<WeightRow> rows;
  for (const PlannedWeight& weight : plan.weights()) {
    if (!weight.is_matrix()) continue;
    WeightRow row{.tensors = NameOf(weight),
                  .stored = FormatName(weight.stored),
                  .loaded = FormatName(weight.loaded),
                  .kernels = KernelsOf(weight)};
    auto it = std::find_if(rows.begin(), rows.end(), [&](const WeightRow& other) {
      return other.tensors == row.tensors && other.stored == row.stored &&
             other.loaded == row.loaded;
    });
    if (it == rows.end()) it = rows.insert(rows.end(), std::move(row));
    ++it->num_tensors;
    it->stored_bytes += weight.stored_bytes;
    it->loaded_bytes += weight.loaded_bytes;
  }
  return rows;
}

}  // namespace lapidary
