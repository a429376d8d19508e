// The assistant on the GPU: what may follow the last token of some sequences, as kernels in the
// stream of the step that verifies it. Nobody waits in between: drafts go from where they are made
// to the rows of the step.
//
// A round stands still (CpuDrafter): its queries ask from one position and see the target's keys
// before the last token. It reads the target's pages and writes nothing there.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "executor/cuda/cuda_blocks.h"
#include "executor/cuda/decoder_program.h"
#include "executor/cuda/device_step.h"
#include "executor/cuda/resident_steps.h"
#include "executor/draft_options.h"
#include "ops/cuda/drafting/drafting.h"

namespace lapidary::cuda {

using DeviceAssistantWeights = AssistantWeightsOf<DeviceStorage>;

// What fills a call's draft windows, and the planner's: of the assistant's layers by group.
std::array<AttentionGeometry, kNumKvGroups> DraftGeometry(const DrafterOptions& options);

class CudaDrafter : private CudaBlocks {
 public:
  // The target as its drafter sees it.
  struct Target {
    const ModelPlan& plan;
    const DeviceWeights& weights;
    const KvLayout& layout;
    const SlotMemory& slots;
  };

  // All arguments but `limits` must outlive the drafter. `weights` are of options.plan.
  CudaDrafter(const DeviceInfo& device, const DrafterOptions& options,
              const DeviceAssistantWeights& weights, const Target& target, KernelScratch& scratch,
              const CudaForwardLimits& limits);

  using CudaBlocks::set_pool;

  // The step's part of these calls.
  void Fill(PrepareStepCall& call) const;
  void Fill(SamplingCall& call) const;

  // Whether a step has drafts that run as one kernel.
  bool IsResident(const DeviceStep& step) const;

  // Queues the rounds of a step that is prepared. `sampling` is the step's, with its own logits and
  // scratch, which are free until the target's head. `logits_out`: [drafts, vocab] on the host, or
  // null.
  void Run(const LaunchContext& context, const DeviceStep& step, const SamplingCall& sampling,
           float* logits_out);

  // Behind the acceptance of a step: what its rounds may begin with. `stream` [outputs, hidden].
  void KeepHidden(const LaunchContext& context, const SamplingCall& sampling, const float* stream);

  int64_t num_bytes_for_test() const;

 private:
  void MakeInputs(const DeviceStep& step, int draft_idx);
  // What the head reads, from the rows of MakeInputs; or, of one row, the first product of the head
  // as well.
  void RunLayers(const DeviceStep& step);
  void RunResident(const DeviceStep& step, float* scores);
  // Of all tokens, or of the centroids of an ordered head.
  float* HeadScores(const SamplingCall& sampling) const;
  void RunHead(const SamplingCall& sampling, bool wants_logits);
  AttentionInputs InputsOf(const LayerAttention& layer, const DeviceStep& step) const;

  const AssistantPlan& assistant_;
  const DeviceAssistantWeights& weights_;
  const Target target_;
  const bool asks_before_;
  const bool likeliest_;
  std::array<AttentionGeometry, kNumKvGroups> geometry_;
  DecoderProgram program_;
  ResidualRead final_read_;
  std::unique_ptr<ResidentSteps> resident_;  // null: no draft is one kernel

  DeviceBuffer hidden_rows_;     // bf16 [slots, backbone] of the target, behind its final norm
  DeviceBuffer inputs_;          // bf16 [rounds, 2 * backbone]
  DeviceBuffer feedback_;        // bf16 [rounds, backbone]
  DeviceBuffer token_ordering_;  // int32 [vocab]; ordered heads only
  DeviceBuffer head_scratch_;    // DrafterBytes::head
  DeviceBuffer simulated_rates_;
  int num_simulated_ = 0;
};

}  // namespace lapidary::cuda
