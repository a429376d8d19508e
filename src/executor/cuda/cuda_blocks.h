// What every decoder does with its rows on the GPU, a model's and an assistant's alike: the
// products of its blocks and the attention between them, over buffers allocated once. The residual
// stream in f32, everything between in bf16.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device_memory.h"
#include "executor/cuda/device_step.h"
#include "executor/cuda/forward_limits.h"
#include "executor/cuda/memory_needs.h"
#include "executor/cuda/slot_memory.h"
#include "kv/kv_layout.h"
#include "model/plan.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/decoder_phase.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/resident/resident_step.h"

namespace lapidary::cuda {

// What kernels need beside their operands: one for everything that runs on a stream.
class KernelScratch {
 public:
  KernelScratch(const WorkspaceBytes& sizes, const CudaForwardLimits& limits);

  LinearRunner linear;
  DeviceBuffer partials;  // of split attention
  DeviceBuffer counters;  // of split attention, zero between kernels

  int64_t num_bytes_for_test() const {
    return linear_bytes_ + partials.num_bytes() + counters.num_bytes();
  }

 private:
  int64_t linear_bytes_;
};

class CudaBlocks {
 public:
  void set_pool(std::byte* pool) { pool_ = pool; }

 protected:
  // The steps of a decoder have at most `max_rows` rows. Everything but `limits` must outlive this.
  CudaBlocks(const ModelPlan& plan, const KvLayout& layout, const SlotMemory& slots,
             KernelScratch& scratch, const CudaForwardLimits& limits, int max_rows);

  // How the next kernel of this kind is launched.
  LaunchContext Context(DependentLaunch kind) const {
    LaunchContext context = context_;
    context.dependent = depends_on_last_ && (limits_.dependent_launches & kind) != 0;
    return context;
  }

  float* Stream(int copy) const { return hidden_[copy].As<float>(); }
  ResidualUpdate Update(const ResidualRead& read) const;

  // Of the rows' positions, for EmbedCall and its like.
  void FillRopeTables(RopeTableFill (&fills)[kMaxRopeTables]) const;
  // [max_rows, RopeRowPairs] of a layer.
  const float2* RopeOf(int layer) const { return rope_tables_[rope_of_layer_[layer]].As<float2>(); }

  void RunLinear(LinearCall call, DependentLaunch kind);
  // A product of a block. The head is the caller's.
  void RunProduct(const ProductPhase& phase);

  // For rows whose sequences lie in that set of the step's (planned_step.h).
  ResidentStepCall MakeResidentCall(const DeviceStep& step, int row_set) const;

  // What a step gives to the attention of a layer.
  struct AttentionInputs {
    const int32_t* rope_rows = nullptr;  // [rows] of the rotary tables; null: the same
    bf16* own_entries = nullptr;         // to be made, where the layer owns KV
    const bf16* new_entries = nullptr;   // of the layer whose KV is read
    const AttentionSequence* sequences = nullptr;
    const AttentionItem* items = nullptr;
    const int32_t* num_items = nullptr;
    const int32_t* keys_ahead = nullptr;  // AttentionCall
    int tile_rows = 0;
    int window = 0;
  };
  // queries_, own entries, attended_ from the q, k and v in wide_.
  void Attend(const LayerAttention& layer, const AttentionInputs& inputs);

  int64_t num_block_bytes_for_test() const;

  const ModelPlan& plan_;
  const KvLayout& layout_;
  const SlotMemory& slots_;
  KernelScratch& scratch_;
  const CudaForwardLimits limits_;
  std::byte* pool_ = nullptr;

  std::array<DeviceBuffer, 2> hidden_;  // f32 [max_rows, hidden], copies of the stream
  DeviceBuffer x_;                      // bf16 [max_rows, hidden] normed rows
  DeviceBuffer block_out_;              // bf16 [max_rows, hidden]
  DeviceBuffer wide_;                   // projections, gates, per-layer projections: one at a time
  DeviceBuffer queries_;                // bf16 [max_rows, heads, key_len]
  DeviceBuffer attended_;               // bf16 [max_rows, heads, head_dim]

  // The step under way.
  LaunchContext context_;
  int rows_ = 0;
  bool depends_on_last_ = true;  // the next kernel, on the one before it on its stream

 private:
  DependentLaunch LaunchKind(const ProductPhase& phase) const;

  // Rotary plans: at most one per attention kind.
  std::vector<RopePlan> rope_plans_;
  std::vector<int> rope_of_layer_;
  std::vector<DeviceBuffer> rope_frequencies_;
  std::vector<DeviceBuffer> rope_tables_;  // float2 [max_rows, RopeRowPairs]
};

}  // namespace lapidary::cuda
