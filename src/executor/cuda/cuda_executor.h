// The CUDA executor: bf16 weights and KV on one GPU, steps queued on one stream.
//
// Decode steps, drafts and their verification included, are replayed as graphs, one per padded
// batch size and number of drafts, captured when a size comes the second time; other steps are
// launched kernel by kernel. Nothing is allocated and nobody waits between Submit and Collect.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "executor/cuda/cuda_forward.h"
#include "executor/cuda/cuda_options.h"

namespace lapidary::cuda {

class CudaExecutor : public Executor {
 public:
  // As MakeCudaExecutor.
  static Result<std::unique_ptr<CudaExecutor>> Create(const ModelPlan& plan,
                                                      const TensorSource* source,
                                                      const CudaExecutorOptions& options);
  ~CudaExecutor() override;

  const ModelPlan& plan() const override { return plan_; }
  const KvLayout& kv_layout() const override { return layout_; }
  int num_pages() const override { return num_pages_; }
  int max_drafts() const override { return drafter_ ? kMaxDrafts : 0; }
  int max_rows() const override;
  bool takes_media() const override { return plan_.media_tokens.has_value(); }
  void Submit(StepBatch batch) override;
  void ForgetSlots() override;
  StepOutput Collect() override;

  int64_t weight_bytes_for_test() const {
    return storage_->device_bytes() + (drafter_ ? assistant_storage_->device_bytes() : 0);
  }
  // All that is neither weights nor pool: WorkspaceBytes::total(), and DrafterBytes::total().
  int64_t workspace_bytes_for_test() const {
    return forward_->num_bytes_for_test() + scratch_->num_bytes_for_test() +
           slots_->num_bytes_for_test() + masks_->num_bytes_for_test() + arrays_.num_bytes() +
           copies_.num_bytes() + (drafter_ ? drafter_->num_bytes_for_test() : 0);
  }
  // For tests: every byte of the pool becomes 0xff, which is NaN in bf16.
  void PoisonPoolForTest();
  int num_graphs_for_test() const;

 private:
  CudaExecutor(const DeviceInfo& device, const ModelPlan& plan, const WeightPlan& weights,
               const TensorSource* source, const CudaExecutorOptions& options);
  Status LoadWeights();
  Status LoadAssistant(const WeightPlan& weights);
  // On the device, before there is a pool: by memory_needs.h, as `lapidary plan` adds it up.
  int64_t AllocatedBytes() const;
  Status AllocatePool();

  struct InFlight;
  struct Graph;
  struct GraphKey {
    int sequences;  // padded
    int rows_per_sequence;
    bool drafts_here;
    bool defers_sampling;
    SamplingNeeds needs;
    auto operator<=>(const GraphKey& other) const = default;
  };

  // Lists as long as nearly any such step needs, so that one layout serves them all.
  StepShape GraphShape(const UniformStep& padded) const;
  // The graph sizes that the batch fits, or none.
  UniformStep PadForGraph(const StepBatch& batch) const;
  void AllocateStepBuffers();
  void Upload(InFlight& step, const StepOffsets& offsets);
  void RunPageCopies(InFlight& step);
  // The step's pictures and sounds, where kernels can read them.
  std::vector<SoftRows> StageSoftRows(InFlight& step) const;
  void RunOrReplay(const UniformStep& padded, const DeviceStep& step);
  // Waits for the steps before and for this one's drafts.
  void MakeMasks(InFlight& step, const DeviceStep& device_step);
  // Once the step is done: its tokens move the grammars on.
  void AdvanceMasks(InFlight& step);
  void ReserveDrafts(InFlight& step, DeviceStep& device_step) const;
  void TakeDrafts(InFlight& step, StepOutput& output) const;
  void TakeExpertCounts(const InFlight& step) const;
  static void TakeTokens(const InFlight& step, size_t sequence_idx, SequenceOutput& output);

  const DeviceInfo device_;
  const ModelPlan plan_;
  const CudaExecutorOptions options_;
  const KvLayout layout_;
  ExecutorLimits limits_;
  Stream stream_;
  LaunchContext context_;
  std::unique_ptr<DeviceStorage> storage_;
  DeviceWeights weights_;
  std::unique_ptr<DeviceStorage> assistant_storage_;  // with a drafter
  DeviceAssistantWeights assistant_weights_;
  std::unique_ptr<KernelScratch> scratch_;
  std::unique_ptr<CudaForward> forward_;
  std::unique_ptr<CudaDrafter> drafter_;  // null: there is none
  DeviceBuffer pool_;
  int num_pages_ = 0;

  DeviceBuffer arrays_;  // of the step that runs
  DeviceBuffer copies_;  // its page copies
  std::unique_ptr<SlotMemory> slots_;
  std::unique_ptr<StepArrays> step_arrays_;
  std::unique_ptr<StepMasks> masks_;
  int32_t num_steps_ = 0;
  PinnedBuffer published_;  // PublishIdsCall: the number, then ids
  std::deque<std::unique_ptr<InFlight>> in_flight_;
  std::vector<std::unique_ptr<InFlight>> idle_;
  std::map<GraphKey, Graph> graphs_;
};

}  // namespace lapidary::cuda
