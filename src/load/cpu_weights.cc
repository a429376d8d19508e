#include "load/cpu_weights.h"

#include "gguf/gguf_source.h"
#include "model/quantised_source.h"
#include "model/tensor_sources.h"

namespace lapidary {
namespace {

// A directory of compressed-tensors is repacked into about the bytes that it has, but FP8 and
// NVFP4 (two codes a byte), which become bf16.
Result<int64_t> CompressedBytes(const std::filesystem::path& directory) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
  int64_t num_bytes = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (IsTowerTensor(name)) continue;
    const int factor = tensor.dtype == DType::kF8E4M3 ? 2 : tensor.dtype == DType::kU8 ? 4 : 1;
    num_bytes += tensor.num_bytes() * factor;
  }
  return num_bytes;
}

Result<std::unique_ptr<TensorSource>> OpenUnread(const ModelDescription& model) {
  if (model.gguf_file) {
    ASSIGN_OR_RETURN(GgufCheckpoint checkpoint, GgufCheckpoint::Open(*model.gguf_file));
    ASSIGN_OR_RETURN(auto source, GgufSource::Open(std::move(checkpoint), model.plan));
    return std::unique_ptr<TensorSource>(std::move(source));
  }
  ASSIGN_OR_RETURN(auto source, CheckpointSource::Open(*model.directory, model.plan));
  return std::unique_ptr<TensorSource>(std::move(source));
}

}  // namespace

Result<CpuWeights> MeasureCpuWeights(const ModelDescription& model,
                                     std::optional<DType> quantisation) {
  CpuWeights weights;
  weights.cpu_only = model.plan.has_own_head || model.is_compressed() || quantisation.has_value();
  if (model.is_compressed()) {
    ASSIGN_OR_RETURN(weights.num_bytes, CompressedBytes(*model.directory));
    return weights;
  }
  // A directory may hold its config alone; then it is counted as a preset is.
  std::unique_ptr<TensorSource> source;
  if (model.gguf_file) {
    ASSIGN_OR_RETURN(source, OpenUnread(model));
  } else if (model.directory) {
    auto opened = OpenUnread(model);
    if (opened.ok()) source = std::move(opened).value();
  }
  for (const TensorSpec& spec : RequiredTensors(model.plan)) {
    DType dtype = DType::kBF16;
    if (source != nullptr) {
      ASSIGN_OR_RETURN(const TensorView tensor, source->Get(spec));
      dtype = tensor.dtype;
    }
    weights.cpu_only |= IsBlockDType(dtype);
    if (quantisation && spec.component != TensorComponent::kPerLayerEmbedding) {
      dtype = QuantisedType(spec, dtype, *quantisation);
    }
    weights.num_bytes += DTypeBytes(dtype, spec.num_elements());
  }
  return weights;
}

}  // namespace lapidary
