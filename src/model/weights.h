// The weights of one text decoder, as the executors use them.
//
// Matrices stay where they are (mapped file or dummy memory) in their stored type; the small
// vectors (norms, scales) are copied to float. A weights struct must not outlive its source.
#pragma once

#include <memory>
#include <vector>

#include "model/plan.h"
#include "model/tensor_specs.h"
#include "tensor/tensor_view.h"

namespace lapidary {

// Hands out the tensors of a plan. Owns their memory.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // The tensor in spec's shape and in a weight type, or an error that names it.
  virtual Result<TensorView> Get(const TensorSpec& spec) const = 0;
};

struct AttentionWeights {
  TensorView q_proj;          // [num_heads * head_dim, hidden]
  TensorView o_proj;          // [hidden, num_heads * head_dim]
  std::vector<float> q_norm;  // [head_dim]
  // Owners of KV only:
  TensorView k_proj;          // [num_kv_heads * head_dim, hidden]
  TensorView v_proj;          // same; no data when K is V
  std::vector<float> k_norm;  // [head_dim]
};

struct MlpWeights {
  TensorView gate_proj;  // [width, hidden]
  TensorView up_proj;    // [width, hidden]
  TensorView down_proj;  // [hidden, width]
};

struct MoeWeights {
  TensorView router_proj;               // [experts, hidden]
  std::vector<float> router_scale;      // [hidden]
  std::vector<float> per_expert_scale;  // [experts]
  TensorView gate_up_proj;              // [experts, 2 * expert_width, hidden], gate rows first
  TensorView down_proj;                 // [experts, hidden, expert_width]
  std::vector<float> pre_norm;          // [hidden] pre_feedforward_layernorm_2
  std::vector<float> post_dense_norm;   // [hidden] post_feedforward_layernorm_1
  std::vector<float> post_expert_norm;  // [hidden] post_feedforward_layernorm_2
};

struct PleLayerWeights {
  TensorView gate;               // [ple_width, hidden]
  TensorView projection;         // [hidden, ple_width]
  std::vector<float> post_norm;  // [hidden]
};

struct LayerWeights {
  std::vector<float> input_norm;           // [hidden]
  std::vector<float> post_attention_norm;  // [hidden]
  std::vector<float> pre_mlp_norm;         // [hidden]
  std::vector<float> post_mlp_norm;        // [hidden]
  AttentionWeights attention;
  MlpWeights mlp;
  MoeWeights moe;       // has_moe layers only
  PleLayerWeights ple;  // models with per-layer embeddings only
  float layer_scalar = 1.0f;
};

struct ModelWeights {
  TensorView embedding;                    // [vocab, hidden]; also the head
  std::vector<float> final_norm;           // [hidden]
  TensorView ple_table;                    // [ple_vocab, layers * ple_width]
  TensorView ple_projection;               // [layers * ple_width, hidden]
  std::vector<float> ple_projection_norm;  // [ple_width], one vector for all layers
  std::vector<LayerWeights> layers;
};

Result<ModelWeights> BindWeights(const ModelPlan& plan, const TensorSource& source);

}  // namespace lapidary
