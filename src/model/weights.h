// The weights of one text decoder, as the executors use them, wherever they live.
//
// One structure and one binding serve every backend; a backend says what a matrix and a vector are.
// On the host, matrices stay where they are (mapped file or dummy memory) in their stored type and
// the small vectors (norms, scales) are copied to float.
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

template <typename Storage>
struct AttentionWeightsOf {
  typename Storage::Matrix q_proj{};  // [num_heads * head_dim, hidden]
  typename Storage::Matrix o_proj{};  // [hidden, num_heads * head_dim]
  typename Storage::Vector q_norm{};  // [head_dim]
  // Owners of KV only:
  typename Storage::Matrix k_proj{};  // [num_kv_heads * head_dim, hidden]
  typename Storage::Matrix v_proj{};  // same; no data when K is V
  typename Storage::Vector k_norm{};  // [head_dim]
};

template <typename Storage>
struct MlpWeightsOf {
  typename Storage::Matrix gate_proj{};  // [width, hidden]
  typename Storage::Matrix up_proj{};    // [width, hidden]
  typename Storage::Matrix down_proj{};  // [hidden, width]
};

template <typename Storage>
struct MoeWeightsOf {
  typename Storage::Matrix router_proj{};       // [experts, hidden]
  typename Storage::Vector router_scale{};      // [hidden]
  typename Storage::Vector per_expert_scale{};  // [experts]
  typename Storage::Matrix gate_up_proj{};  // [experts, 2 * expert_width, hidden], gate rows first
  typename Storage::Matrix down_proj{};     // [experts, hidden, expert_width]
  typename Storage::Vector pre_norm{};      // [hidden] pre_feedforward_layernorm_2
  typename Storage::Vector post_dense_norm{};   // [hidden] post_feedforward_layernorm_1
  typename Storage::Vector post_expert_norm{};  // [hidden] post_feedforward_layernorm_2
};

template <typename Storage>
struct PleLayerWeightsOf {
  typename Storage::Matrix gate{};        // [ple_width, hidden]
  typename Storage::Matrix projection{};  // [hidden, ple_width]
  typename Storage::Vector post_norm{};   // [hidden]
};

template <typename Storage>
struct LayerWeightsOf {
  typename Storage::Vector input_norm{};           // [hidden]
  typename Storage::Vector post_attention_norm{};  // [hidden]
  typename Storage::Vector pre_mlp_norm{};         // [hidden]
  typename Storage::Vector post_mlp_norm{};        // [hidden]
  AttentionWeightsOf<Storage> attention;
  MlpWeightsOf<Storage> mlp;
  MoeWeightsOf<Storage> moe;       // has_moe layers only
  PleLayerWeightsOf<Storage> ple;  // models with per-layer embeddings only
  float layer_scalar = 1.0f;
};

template <typename Storage>
struct ModelWeightsOf {
  typename Storage::Matrix embedding{};            // [vocab, hidden]; also the head
  typename Storage::Vector final_norm{};           // [hidden]
  typename Storage::Matrix ple_table{};            // [ple_vocab, layers * ple_width]
  typename Storage::Matrix ple_projection{};       // [layers * ple_width, hidden]
  typename Storage::Vector ple_projection_norm{};  // [ple_width], one vector for all layers
  std::vector<LayerWeightsOf<Storage>> layers;
};

// Asks `storage` for every tensor of the plan, in a fixed order: those that a backend may want side
// by side (q, k, v; gate, up) come directly after each other. Storage has
//   Result<Matrix> GetMatrix(const TensorSpec&), Result<Vector> GetVector(const TensorSpec&) and
//   Result<float> GetScalar(const TensorSpec&).
template <typename Storage>
Result<ModelWeightsOf<Storage>> BindWeightsTo(const ModelPlan& plan, Storage& storage);

// Weights on the host; they must not outlive their source.
class HostStorage {
 public:
  using Matrix = TensorView;
  using Vector = std::vector<float>;

  explicit HostStorage(const TensorSource& source) : source_(source) {}
  Result<TensorView> GetMatrix(const TensorSpec& spec) { return source_.Get(spec); }
  Result<std::vector<float>> GetVector(const TensorSpec& spec);
  Result<float> GetScalar(const TensorSpec& spec);

 private:
  const TensorSource& source_;
};

using AttentionWeights = AttentionWeightsOf<HostStorage>;
using MoeWeights = MoeWeightsOf<HostStorage>;
using LayerWeights = LayerWeightsOf<HostStorage>;
using ModelWeights = ModelWeightsOf<HostStorage>;

Result<ModelWeights> BindWeights(const ModelPlan& plan, const TensorSource& source);

}  // namespace lapidary
