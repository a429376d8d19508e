// Runs the program of a step (decoder_program.h) on the GPU: the residual stream in f32, everything
// between in bf16. All buffers are allocated once, for the largest step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device_memory.h"
#include "executor/cuda/decoder_program.h"
#include "executor/cuda/device_weights.h"
#include "executor/cuda/forward_limits.h"
#include "executor/cuda/resident_steps.h"
#include "executor/cuda/slot_memory.h"
#include "executor/cuda/step_arrays.h"
#include "kv/kv_layout.h"
#include "model/plan.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/attention/kv_entries.h"
#include "ops/cuda/linear/linear.h"

namespace lapidary::cuda {

// One step on the device: its arrays and what it is to produce.
struct DeviceStep {
  StepShape shape;
  StepOffsets offsets;
  std::byte* arrays = nullptr;
  StepArrays::TileRows tile_rows{};  // of attention
  SamplingNeeds sampling;
  std::vector<int32_t> sampling_passes;  // StepArrays
  float* logits_out = nullptr;           // [outputs, vocab], page-locked; null: not wanted

  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(arrays + offset);
  }
};

class CudaForward {
 public:
  // Everything but `limits` must outlive this. `pool` holds the KV pages.
  CudaForward(const DeviceInfo& device, const ModelPlan& plan, const DeviceWeights& weights,
              const KvLayout& layout, const SlotMemory& slots, const CudaForwardLimits& limits);

  void set_pool(std::byte* pool) { pool_ = pool; }

  // Whether a step is one of those that run as one kernel.
  bool IsResident(const DeviceStep& step) const;

  // Queues the kernels of a step: the sampled rows are then on their way to sampled().
  void Run(const LaunchContext& context, const DeviceStep& step);

  const SampledRow* sampled() const { return sampled_.As<SampledRow>(); }

  // Of all its buffers.
  int64_t num_bytes_for_test() const;

 private:
  // How the next kernel of this kind is launched.
  LaunchContext Context(DependentLaunch kind) const {
    LaunchContext context = context_;
    context.dependent = (limits_.dependent_launches & kind) != 0;
    return context;
  }

  // The step's own arrays, from what the host planned and where the slots stand.
  void Prepare();
  // h = E[token] * sqrt(hidden), and the rotary tables of the rows.
  void Embed();
  void MakePerLayerInputs();

  // The span from the first layer to the logits, as one kernel.
  void RunResident();
  void RunPhase(const ProductPhase& phase);
  void RunPhase(const ExpertsPhase& phase);
  void RunPhase(const PerLayerBlockPhase& phase);
  void RunPhase(const KeepOutputRowsPhase& phase);
  void RunPhase(const StoreEntriesPhase& phase);

  void WritePrograms();
  static int ProgramIndex(bool drops_rows, bool fuses, bool fuses_outputs) {
    return 4 * drops_rows + 2 * fuses + fuses_outputs;
  }
  // The program of the step under way.
  const DecoderProgram& Program() const;
  // Whether the per-layer blocks of so many rows are one kernel.
  bool FusesPerLayerBlocks(int rows) const;

  float* Stream(int copy) const { return hidden_[copy].As<float>(); }
  ResidualUpdate Update(const ResidualRead& read) const;
  // queries_, new entries, attended_ from the q, k and v in wide_.
  void Attend(const LayerAttention& layer);
  DependentLaunch LaunchKind(const ProductPhase& phase) const;
  void RunLinear(LinearCall call, DependentLaunch kind);
  // New entries of an owning layer in this step: [rows, num_kv_heads, entry_len].
  bf16* NewEntries(int owner) const;
  bool stores_at_end() const { return step_.shape.rows <= limits_.max_sequences; }
  void StoreEntries(const StoredLayer* layers, int num_layers, int max_kv_heads);
  void RunHead(const ProductPhase& phase);
  void HeadBatch(const MatrixRef& weight, int first_output, int num_outputs,
                 const ResidualUpdate* residual);
  // Samples from logits that are there, and copies them to the host where wanted.
  void FinishLogits(int first_output, int num_outputs);
  SamplingCall MakeSamplingCall() const;
  void Sample(int first_output, int num_outputs);
  // Behind the last sampled row: accepts drafts.
  void Accept();

  const ModelPlan& plan_;
  const DeviceWeights& weights_;
  const KvLayout& layout_;
  const SlotMemory& slots_;
  const CudaForwardLimits limits_;
  std::byte* pool_ = nullptr;
  LinearRunner linear_;

  // Rotary plans: at most one per attention kind.
  std::vector<RopePlan> rope_plans_;
  std::vector<int> rope_of_layer_;
  std::vector<DeviceBuffer> rope_frequencies_;
  std::vector<DeviceBuffer> rope_tables_;  // float2 [max_rows, RopeRowPairs]

  std::array<DeviceBuffer, 2> hidden_;  // f32 [max_rows, hidden], copies of the stream
  DeviceBuffer x_;                      // bf16 [max_rows, hidden] normed rows
  DeviceBuffer block_out_;              // bf16 [max_rows, hidden]
  DeviceBuffer wide_;                   // projections, gates, per-layer projections: one at a time
  DeviceBuffer queries_;                // bf16 [max_rows, heads, key_len]
  DeviceBuffer attended_;               // bf16 [max_rows, heads, head_dim]
  DeviceBuffer ple_inputs_;             // bf16 [max_rows, layers * width]
  DeviceBuffer gathered_;               // rows on their way, in KeepOutputRows
  DeviceBuffer logits_;                 // f32 [max_logit_rows, vocab]
  DeviceBuffer sampled_;                // SampledRow [max_rows]
  DeviceBuffer sampling_scratch_;
  DeviceBuffer partials_;
  DeviceBuffer counters_;
  DeviceBuffer router_choice_;  // int32 and f32 [max_rows, top_k]
  DeviceBuffer expert_scratch_;

  // New entries: of all owners for small steps, of one at a time (and of donors) for large ones.
  DeviceBuffer small_entries_;
  DeviceBuffer large_entries_;
  std::vector<int64_t> small_offset_;  // by layer, bytes
  std::vector<int64_t> large_offset_;
  std::vector<int> owner_index_;  // by layer: position in the StoredLayer arrays
  DeviceBuffer small_stored_;     // StoredLayer [owners]
  DeviceBuffer large_stored_;
  int num_owners_ = 0;
  int max_kv_heads_ = 0;

  bool has_per_layer_block_ = false;  // RunPerLayerBlock can be used
  // By ProgramIndex.
  std::array<DecoderProgram, 8> programs_;
  // One-token steps, where the model and the options allow them.
  std::unique_ptr<ResidentSteps> resident_;

  // The step under way.
  LaunchContext context_;
  DeviceStep step_;
  int row_set_ = kAllRows;
  int rows_ = 0;  // active: all, then the outputs
};

}  // namespace lapidary::cuda
