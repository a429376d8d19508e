#include "gguf/gguf_source.h"

#include <cstring>

#include "base/check.h"
#include "gguf/gguf_names.h"

namespace lapidary {
namespace {

bool IsUsableType(DType dtype) { return IsWeightDType(dtype) || IsBlockDType(dtype); }

// "blk.3.ffn_gate_up_exps.weight" -> "blk.3.ffn_gate_exps.weight"
std::string HalfName(const TensorSpec& spec, const char* half) {
  return fmt::format("blk.{}.ffn_{}_exps.weight", spec.layer, half);
}

}  // namespace

Status GgufSource::JoinExperts(const TensorSpec& spec) {
  const std::string where = checkpoint_.path().string();
  const TensorView* gate = checkpoint_.Find(HalfName(spec, "gate"));
  const TensorView* up = checkpoint_.Find(HalfName(spec, "up"));
  const int64_t num_experts = spec.shape[0];
  const std::vector<int64_t> half_shape = {num_experts, spec.shape[1] / 2, spec.shape[2]};
  if (gate == nullptr || up == nullptr) {
    return MakeError("{}: {} is missing", where, GgufTensorName(spec.name));
  }
  if (gate->shape != half_shape || up->shape != half_shape || gate->dtype != up->dtype) {
    return MakeError("{}: {} and {} must both have shape {} and one type", where,
                     HalfName(spec, "gate"), HalfName(spec, "up"), ShapeToString(half_shape));
  }
  const int64_t bytes = gate->num_bytes() / num_experts;
  joined_.push_back(std::make_unique<std::byte[]>(2 * gate->num_bytes()));
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    std::byte* to = joined_.back().get() + 2 * expert * bytes;
    std::memcpy(to, gate->data + expert * bytes, static_cast<size_t>(bytes));
    std::memcpy(to + bytes, up->data + expert * bytes, static_cast<size_t>(bytes));
  }
  tensors_[spec.name] = {joined_.back().get(), gate->dtype, spec.shape};
  return {};
}

Status GgufSource::CheckTensor(const TensorSpec& spec) {
  const std::string where = checkpoint_.path().string();
  const std::string name = GgufTensorName(spec.name);
  const TensorView* tensor = checkpoint_.Find(name);
  if (tensor == nullptr && spec.name.ends_with("experts.gate_up_proj")) return JoinExperts(spec);
  if (tensor == nullptr) return MakeError("{}: {} is missing", where, name);
  if (tensor->shape != spec.shape) {
    return MakeError("{}: tensor {} has shape {}, the metadata asks for {}", where, name,
                     ShapeToString(tensor->shape), ShapeToString(spec.shape));
  }
  if (!IsUsableType(tensor->dtype)) {
    return MakeError("{}: tensor {} is {}, which no weight can be", where, name,
                     DTypeName(tensor->dtype));
  }
  tensors_[spec.name] = *tensor;
  return {};
}

Status GgufSource::Check(const std::vector<TensorSpec>& required,
                         std::set<std::string, std::less<>> unused) {
  std::set<std::string, std::less<>> known = std::move(unused);
  known.insert("rope_freqs.weight");
  for (const TensorSpec& spec : required) {
    RETURN_IF_ERROR(CheckTensor(spec));
    known.insert(GgufTensorName(spec.name));
    if (spec.name.ends_with("experts.gate_up_proj")) {
      known.insert(HalfName(spec, "gate"));
      known.insert(HalfName(spec, "up"));
    }
  }
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (known.contains(name)) continue;
    return MakeError("{}: tensor '{}' does not belong to the model the metadata describes",
                     checkpoint_.path().string(), name);
  }
  return {};
}

Result<std::unique_ptr<GgufSource>> GgufSource::Open(GgufCheckpoint checkpoint,
                                                     const ModelPlan& plan) {
  auto source = std::unique_ptr<GgufSource>(new GgufSource(std::move(checkpoint)));
  std::set<std::string, std::less<>> unused;
  for (const TensorSpec& spec : UnusedSharedKvTensors(plan)) {
    unused.insert(GgufTensorName(spec.name));
  }
  RETURN_IF_ERROR(source->Check(RequiredTensors(plan), std::move(unused)));
  return source;
}

Result<std::unique_ptr<GgufSource>> GgufSource::Open(GgufCheckpoint checkpoint,
                                                     const AssistantPlan& plan) {
  auto source = std::unique_ptr<GgufSource>(new GgufSource(std::move(checkpoint)));
  // Of an ordered head, which a GGUF file does not describe.
  RETURN_IF_ERROR(source->Check(RequiredTensors(plan),
                                {"masked_embd_centroids.weight", "masked_embd_ordering"}));
  return source;
}

Result<TensorView> GgufSource::Get(const TensorSpec& spec) const {
  const auto it = tensors_.find(spec.name);
  CHECK(it != tensors_.end()) << spec.name;  // Open() checked the whole plan.
  return it->second;
}

}  // namespace lapidary
