// A step of the decoder on the GPU as a list of phases: one description for the kernels that run
// them one by one, and for the kernels that run a span of them (a per-layer block, a whole
// one-token step).
//
// A layer is a row of blocks: attention, MLP, per-layer embedding. Each is two products: the first
// reads the residual stream, the second makes what is to be added to it. Adding needs a norm over
// whole rows, so it is left to whoever reads the stream next: what to add is part of that phase's
// ResidualRead.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "model/kv_entry.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/linear/linear.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

// ResidualUpdate of linear.h, before it is known where activations lie.
struct ResidualRead {
  const float* post_norm = nullptr;  // of what the last block made; null: nothing is added
  float scale = 1.0f;
  const float* pre_norm = nullptr;  // null: the stream itself is read
  // There are two copies of the stream, since all blocks of a kernel read the old one.
  int from = 0;
  int to = 1;
};

// From q, k and v to the rows that the output projection reads.
struct LayerAttention {
  int layer = 0;
  int kv_layer = 0;                     // whose KV is read; below 0: of another decoder
  const float* q_norm = nullptr;        // [head_dim]
  const float* k_norm = nullptr;        // [head_dim], own
  const float* owner_k_norm = nullptr;  // [head_dim], of kv_layer
  const float2* rope = nullptr;         // [rows, RopeRowPairs] of a step
  int rotary_pairs = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // 256 or 512
  int window = 0;    // 0: all
  int group = 0;
  KvEntryPlan entry{};
  int64_t layer_offset = 0;  // of kv_layer, bytes from a page's start
  bool k_is_v = false;

  bool owns_kv() const { return kv_layer == layer; }
};

enum class DecoderBlock { kAttention, kMlp, kPerLayer, kHead };

enum class ProductInput {
  kResidual,     // the stream, brought up to date: `residual`
  kNormed,       // the same, as the kernel before has left it
  kAttention,    // what `attention` makes of the last product
  kLastProduct,  // its output
};

struct ProductPhase {
  DecoderBlock block = DecoderBlock::kAttention;
  ProductInput input = ProductInput::kResidual;
  ResidualRead residual{};
  std::optional<LayerAttention> attention{};
  MatrixRef weight{};  // [outputs, inputs]
  Epilogue epilogue = Epilogue::kStore;
  const bf16* multiplier = nullptr;  // kGeluMul: [rows, outputs] with a row stride
  int64_t multiplier_stride = 0;
  bool is_beside_experts = false;  // only they need its result, at their end

  bool reads_stream() const {
    return input == ProductInput::kResidual || input == ProductInput::kNormed;
  }
  // The second one of a block.
  bool adds_to_stream() const { return !reads_stream(); }
};

// Joins the chosen experts to what the dense MLP has made.
struct ExpertsPhase {
  int layer = 0;
  int top_k = 0;
  int stream = 0;  // the copy that is up to date, by which rows are routed
  MatrixRef router{};
  const float* router_scale = nullptr;
  const float* per_expert_scale = nullptr;
  const float* pre_norm = nullptr;
  MatrixRef gate_up{};
  MatrixRef down{};
  const float* post_dense_norm = nullptr;
  const float* post_expert_norm = nullptr;
};

// Both products of a per-layer block and the next read of the stream, as one kernel.
struct PerLayerBlockPhase {
  ProductPhase gate{};
  MatrixRef projection{};
  ResidualRead next{};  // in place: from == to == gate.residual.to
};

// From here on there are only the rows with an output.
struct KeepOutputRowsPhase {
  int from = 0;  // copy of the stream
  int to = 0;
  bool is_pending = false;  // what the last block made is not yet added
};

// Nobody reads the pages of this layer's oldest entries any more: new ones may go there.
struct StoreEntriesPhase {
  int layer = 0;
  bool is_last = false;
};

using DecoderPhase = std::variant<ProductPhase, ExpertsPhase, PerLayerBlockPhase,
                                  KeepOutputRowsPhase, StoreEntriesPhase>;

// The stream begins in copy 0.
using DecoderProgram = std::vector<DecoderPhase>;

}  // namespace lapidary::cuda
