// Runs the program of a step (decoder_program.h) on the GPU. All buffers are allocated once, for
// the largest step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device_memory.h"
#include "executor/cuda/cuda_blocks.h"
#include "executor/cuda/cuda_drafter.h"
#include "executor/cuda/decoder_program.h"
#include "executor/cuda/device_step.h"
#include "executor/cuda/device_weights.h"
#include "executor/cuda/forward_limits.h"
#include "executor/cuda/resident_steps.h"
#include "executor/cuda/side_stream.h"
#include "ops/cuda/attention/kv_entries.h"

namespace lapidary::cuda {

struct RouteCall;

class CudaForward : private CudaBlocks {
 public:
  // Everything but `limits` must outlive this.
  CudaForward(const DeviceInfo& device, const ModelPlan& plan, const DeviceWeights& weights,
              const KvLayout& layout, const SlotMemory& slots, KernelScratch& scratch,
              const CudaForwardLimits& limits);

  // Of the KV pages.
  using CudaBlocks::set_pool;
  // Proposes the drafts that steps ask for; must outlive this.
  void set_drafter(CudaDrafter* drafter) { drafter_ = drafter; }

  // Whether a step, or a draft of it, runs as one kernel whose blocks wait for each other.
  bool TakesAllSms(const DeviceStep& step) const;

  // Queues the kernels of a step: the sampled rows are then on their way to sampled().
  void Run(const LaunchContext& context, const DeviceStep& step);

  // What Run has left out of a step that defers it.
  void Sample(const LaunchContext& context, const DeviceStep& step);

  // Empty where experts are not counted.
  const DeviceBuffer& expert_counts() const { return expert_counts_; }
  const SampledRow* sampled() const { return sampled_.As<SampledRow>(); }

  // Of all its buffers.
  int64_t num_bytes_for_test() const;

 private:
  // Whether a step is one of those that run as one kernel.
  bool IsResident(const DeviceStep& step) const;
  // The step's own arrays, from what the host planned and where the slots stand.
  void Prepare();
  // h = E[token] * sqrt(hidden), and the rotary tables of the rows.
  void Embed();
  void PlaceSoftRows();
  void MakePerLayerInputs();

  // The span from the first layer to the logits, as one kernel.
  void RunResident();
  void RunPhase(const ProductPhase& phase);
  // Whether the dense branch of a layer with experts runs beside them.
  bool BranchesOff() const;
  // A product of that branch, on its own stream. Until it is joined, the products' scratch is its.
  void RunBeside(const ProductPhase& phase);
  void RunPhase(const ExpertsPhase& phase);
  void CountExperts(const ExpertsPhase& phase, const RouteCall& route);
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

  AttentionInputs InputsOf(const LayerAttention& layer) const;
  // New entries of an owning layer in this step: [rows, num_kv_heads, entry_len].
  bf16* NewEntries(int owner) const;
  bool stores_at_end() const { return step_.shape.rows <= most_rows_stored_at_end_; }
  void StoreEntries(const StoredLayer* layers, int num_layers, int max_kv_heads);
  void RunHead(const ProductPhase& phase);
  // Whether so many rows' logits are capped: a cap does not change which token is the likeliest,
  // and of many rows it is a kernel that reads and writes them all.
  bool CapsLogits(int num_outputs) const;
  void HeadBatch(const MatrixRef& weight, int first_output, int num_outputs,
                 const ResidualUpdate* residual);
  // Samples from logits that are there, and copies them to the host where wanted.
  void FinishLogits(int first_output, int num_outputs);
  SamplingCall MakeSamplingCall() const;
  void SampleRows(int first_output, int num_outputs);
  // Behind the last sampled row: accepts drafts, and keeps what the next ones begin with.
  void Accept();

  const DeviceWeights& weights_;
  CudaDrafter* drafter_ = nullptr;  // null: there is none

  DeviceBuffer ple_inputs_;  // bf16 [max_rows, layers * width]
  DeviceBuffer gathered_;    // rows on their way, in KeepOutputRows
  DeviceBuffer logits_;      // f32 [max_logit_rows, vocab]
  DeviceBuffer sampled_;     // SampledRow [max_rows]
  DeviceBuffer sampling_scratch_;
  DeviceBuffer router_choice_;   // int32 and f32 [max_rows, top_k]
  DeviceBuffer route_counters_;  // int32 [kRouteCounters], zero between kernels
  DeviceBuffer expert_inputs_;   // bf16 [max_rows, hidden], as x_ of the dense branch
  DeviceBuffer expert_scratch_;
  DeviceBuffer expert_counts_;  // uint64 [layers, experts], if they are counted

  // New entries: of all owners for small steps, of one at a time (and of donors) for large ones.
  DeviceBuffer small_entries_;
  DeviceBuffer large_entries_;
  std::vector<int64_t> small_offset_;  // by layer, bytes
  std::vector<int64_t> large_offset_;
  std::vector<int> owner_index_;  // by layer: position in the StoredLayer arrays
  DeviceBuffer small_stored_;     // StoredLayer [owners]
  DeviceBuffer large_stored_;
  int most_rows_stored_at_end_ = 0;
  int num_owners_ = 0;
  int max_kv_heads_ = 0;

  bool has_per_layer_block_ = false;  // RunPerLayerBlock can be used
  // By ProgramIndex.
  std::array<DecoderProgram, 8> programs_;
  // One-token steps, where the model and the options allow them.
  std::unique_ptr<ResidentSteps> resident_;

  SideStream dense_branch_;

  // The step under way. rows_ are the active ones: all, then the outputs.
  DeviceStep step_;
  int row_set_ = kAllRows;
  int last_stream_ = 0;  // the copy that the head reads
};

}  // namespace lapidary::cuda
