#include "load/stored_weights.h"

#include "gguf/gguf_source.h"
#include "model/compressed_source.h"
#include "model/tensor_sources.h"

namespace lapidary {

Result<std::shared_ptr<const TensorSource>> OpenStoredWeights(const ModelDescription& model) {
  using Source = std::shared_ptr<const TensorSource>;
  if (model.gguf_file) {
    ASSIGN_OR_RETURN(GgufCheckpoint checkpoint, GgufCheckpoint::Open(*model.gguf_file));
    ASSIGN_OR_RETURN(auto source, GgufSource::Open(std::move(checkpoint), model.plan));
    return Source(std::move(source));
  }
  if (!model.directory) {
    return MakeError(
        "'{}' is a preset without weights: add --load-format dummy, or name a checkpoint directory "
        "or a GGUF file",
        model.name);
  }
  if (model.is_compressed()) {
    ASSIGN_OR_RETURN(auto source, CompressedSource::Open(*model.directory, model.plan));
    return Source(std::move(source));
  }
  ASSIGN_OR_RETURN(auto source, CheckpointSource::Open(*model.directory, model.plan));
  return Source(std::move(source));
}

Result<std::shared_ptr<const TensorSource>> FindStoredWeights(const ModelDescription& model) {
  using Source = std::shared_ptr<const TensorSource>;
  if (!model.gguf_file && !model.directory) return Source();
  auto source = OpenStoredWeights(model);
  if (!source.ok() && !model.gguf_file && !model.is_compressed()) return Source();
  return source;
}

}  // namespace lapidary
