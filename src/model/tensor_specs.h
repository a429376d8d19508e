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
  kEmbedding,           // embed_tokens, also the head
  kPerLayerEmbedding,   // embed_tokens_per_layer
  kPerLayerProjection,  // per_layer_model_projection and its norm
  kAttention,
  kMlp,
  kExperts,
  kLayerOther,  // layer norms, scalars, router, PLE gate
  kFinalNorm,
};

// How synthetic checkpoints draw a tensor; real ones do not care.
enum class TensorRole { kMatrix, kTable, kRouter, kNorm, kQkNorm, kFinalNorm, kScale };

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

// k_proj, v_proj and k_norm of layers that read a donor's KV: published files carry them, nobody
// reads them.
std::vector<TensorSpec> UnusedSharedKvTensors(const ModelPlan& plan);

}  // namespace lapidary
