// Which tensors a plan needs: names as in the safetensors files (prefix stripped), shapes,
// components.
//
// One list serves the loader (what must be there, in which shape), `synth` and dummy weights (what
// to make) and `inspect` (parameter and byte counts).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/plan.h"

namespace lapidary {

enum class TensorComponent {
  kEmbedding,           // embed_tokens, also the head unless there is one
  kHead,                // lm_head, of few models
  kPerLayerEmbedding,   // embed_tokens_per_layer
  kPerLayerProjection,  // per_layer_model_projection and its norm
  kAttention,
  kMlp,
  kExperts,
  kLayerOther,  // layer norms, scalars, router, PLE gate
  kFinalNorm,
  kTower,  // of pictures and sounds (towers/tower_specs.h), not the decoder's
};

// How synthetic checkpoints draw a tensor; real ones do not care.
enum class TensorRole {
  kMatrix,
  kTable,
  kRouter,
  kNorm,
  kQkNorm,
  kFinalNorm,
  kScale,
  kOffset,   // biases, positions: around zero
  kClipMin,  // bounds of a clipped product, scalars
  kClipMax,
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  TensorComponent component;
  TensorRole role;
  int layer = -1;  // -1: outside the layers

  int64_t num_elements() const;
};

// Everything the text decoder reads, in file order.
std::vector<TensorSpec> RequiredTensors(const ModelPlan& plan);

// Of an assistant. Beside the decoder's own there are the two projections and, with an ordered
// head, the centroids; kTokenOrdering, which holds no weights, is not in the list.
std::vector<TensorSpec> RequiredTensors(const AssistantPlan& plan);

// A head that is not the embeddings.
inline constexpr const char* kHeadName = "lm_head.weight";

// I64 [vocab]: the token ids, grouped by centroid.
inline constexpr const char* kTokenOrdering = "masked_embedding.token_ordering";
inline constexpr const char* kCentroids = "masked_embedding.centroids.weight";

// k_proj, v_proj and k_norm of layers that read a donor's KV: published files carry them, nobody
// reads them.
std::vector<TensorSpec> UnusedSharedKvTensors(const ModelPlan& plan);

}  // namespace lapidary
