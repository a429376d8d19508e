// The weights of one text decoder, as the executors use them, wherever they live.
//
// One structure and one binding serve every backend; a backend says where matrices lie and what a
// vector is. On the host, matrices stay where they are (mapped file or dummy memory) in their
// stored type and the small vectors (norms, scales) are copied to float.
#pragma once

#include <memory>
#include <vector>

#include "model/plan.h"
#include "model/tensor_specs.h"
#include "tensor/matrix_ref.h"
#include "tensor/tensor_view.h"

namespace lapidary {

// Hands out the tensors of a plan. Owns their memory.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // The tensor in spec's shape and in a weight type, or an error that names it.
  virtual Result<TensorView> Get(const TensorSpec& spec) const = 0;
  // A matrix, a tensor of two dims or more, as it is stored: codes, scales and offsets. Its rows
  // may be several matrices, those of experts for one, which follow each other and need not agree
  // in their format. By default the one that Get has.
  virtual Result<std::vector<MatrixRef>> GetStored(const TensorSpec& spec) const;
};

// Matrices that read the same input are also one matrix, [q; k; v] and [gate; up], on storages that
// lay them out so (kStacksRows); elsewhere that one has no data.
template <typename Storage>
struct AttentionWeightsOf {
  MatrixRef q_proj{};                 // [num_heads * head_dim, hidden]
  MatrixRef o_proj{};                 // [hidden, num_heads * head_dim]
  typename Storage::Vector q_norm{};  // [head_dim]
  // Owners of KV only:
  MatrixRef k_proj{};                 // [num_kv_heads * head_dim, hidden]
  MatrixRef v_proj{};                 // same; no data when K is V
  typename Storage::Vector k_norm{};  // [head_dim]

  MatrixRef qkv_proj{};  // [num_qkv_heads * head_dim, hidden]
};

template <typename Storage>
struct MlpWeightsOf {
  MatrixRef gate_proj{};  // [width, hidden]
  MatrixRef up_proj{};    // [width, hidden]
  MatrixRef down_proj{};  // [hidden, width]

  MatrixRef gate_up_proj{};  // [2 * width, hidden]
};

template <typename Storage>
struct MoeWeightsOf {
  MatrixRef router_proj{};                      // [experts, hidden]
  typename Storage::Vector router_scale{};      // [hidden]
  typename Storage::Vector per_expert_scale{};  // [experts]
  MatrixRef gate_up_proj{};  // [experts * 2 * expert_width, hidden], gate rows of each first
  MatrixRef down_proj{};     // [experts * hidden, expert_width]
  typename Storage::Vector pre_norm{};          // [hidden] pre_feedforward_layernorm_2
  typename Storage::Vector post_dense_norm{};   // [hidden] post_feedforward_layernorm_1
  typename Storage::Vector post_expert_norm{};  // [hidden] post_feedforward_layernorm_2
};

template <typename Storage>
struct PleLayerWeightsOf {
  MatrixRef gate{};                      // [ple_width, hidden]
  MatrixRef projection{};                // [hidden, ple_width]
  typename Storage::Vector post_norm{};  // [hidden]
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
  MatrixRef embedding{};                           // [vocab, hidden]
  MatrixRef head{};                                // [vocab, hidden]; mostly the embedding
  typename Storage::Vector final_norm{};           // [hidden]
  MatrixRef ple_table{};                           // [ple_vocab, layers * ple_width]
  MatrixRef ple_projection{};                      // [layers * ple_width, hidden]
  typename Storage::Vector ple_projection_norm{};  // [ple_width], one vector for all layers
  std::vector<LayerWeightsOf<Storage>> layers;
};

template <typename Storage>
struct AssistantWeightsOf {
  MatrixRef pre_projection{};   // [hidden, 2 * backbone]
  MatrixRef post_projection{};  // [backbone, hidden]
  MatrixRef centroids{};        // [num_centroids, hidden]; ordered heads only
  // Its embedding is the head: [vocab, hidden], for an ordered head in the order of the centroids.
  ModelWeightsOf<Storage> decoder;
};

// Asks `storage` for every tensor of the plan, in a fixed order: those that form one matrix (q, k,
// v; gate, up) come directly after each other, and a storage with kStacksRows puts each matrix
// directly behind the one before. Storage has
//   Result<MatrixRef> GetMatrix(const TensorSpec&), Result<Vector> GetVector(const TensorSpec&) and
//   Result<float> GetScalar(const TensorSpec&).
template <typename Storage>
Result<ModelWeightsOf<Storage>> BindWeightsTo(const ModelPlan& plan, Storage& storage);
template <typename Storage>
Result<AssistantWeightsOf<Storage>> BindWeightsTo(const AssistantPlan& plan, Storage& storage);

// Weights on the host; they must not outlive their source.
class HostStorage {
 public:
  using Vector = std::vector<float>;
  static constexpr bool kStacksRows = false;

  explicit HostStorage(const TensorSource& source) : source_(source) {}
  Result<MatrixRef> GetMatrix(const TensorSpec& spec);
  Result<std::vector<float>> GetVector(const TensorSpec& spec);
  Result<float> GetScalar(const TensorSpec& spec);

 private:
  const TensorSource& source_;
};

using AttentionWeights = AttentionWeightsOf<HostStorage>;
using MoeWeights = MoeWeightsOf<HostStorage>;
using LayerWeights = LayerWeightsOf<HostStorage>;
using ModelWeights = ModelWeightsOf<HostStorage>;
using AssistantWeights = AssistantWeightsOf<HostStorage>;

Result<ModelWeights> BindWeights(const ModelPlan& plan, const TensorSource& source);
Result<AssistantWeights> BindWeights(const AssistantPlan& plan, const TensorSource& source);

}  // namespace lapidary
