// The CPU executor: exact (f32 activations and KV) unless fast_math is asked for, any number of
// sequences, rows of any kind mixed.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "executor/cpu/cpu_draft_ranks.h"
#include "executor/cpu/cpu_ranks.h"
#include "executor/executor.h"
#include "executor/repeated_text.h"
#include "executor/slot_constraints.h"
#include "model/expert_counts.h"
#include "model/weights.h"

namespace lapidary::cpu {

struct CpuExecutorOptions {
  int num_threads = 0;  // 0: one per core
  // Where they run; goes before their number.
  std::optional<ThreadPlacement> placement = {};
  // That share the model (model/shard.h). They take turns on the threads; what they compute differs
  // from one rank's in the last bits of sums.
  int num_ranks = 1;
  int num_pages = 0;  // of the KV pool, of every rank's; scratch page included
  // With several ranks, of one of them; default: MakeKvLayout in f32, which is exact.
  std::optional<KvLayout> kv_layout = {};
  // Prompt rows whose output nobody needs stop before the first layer that shares KV. Exact.
  bool skip_unneeded_rows = true;
  // Activations are rounded to 8 bits where weights are in blocks (linear_panels.h), and to bf16
  // where weights are and the machine has AMX (linear_tiles.h).
  bool fast_math = false;
  // What was repacked for it is given back to the system, of one rank's. Only where nobody else
  // reads the source.
  bool release_repacked = false;
  std::optional<DrafterOptions> drafter = {};
  std::optional<LookupLengths> lookup = {};          // none: text that repeats is not drafted
  std::shared_ptr<ExpertCounts> expert_counts = {};  // null: they are not counted
  int64_t mask_steps = kMaskStepsPerThread;          // of a step's masks, by thread
};

class CpuExecutor : public Executor {
 public:
  // Keeps `source` alive: the weights are views into it. Refused where the ranks cannot share the
  // model.
  static Result<std::unique_ptr<CpuExecutor>> Create(const ModelPlan& plan,
                                                     std::shared_ptr<const TensorSource> source,
                                                     const CpuExecutorOptions& options);
  ~CpuExecutor() override;

  const ModelPlan& plan() const override { return plan_; }
  const KvLayout& kv_layout() const override { return layout_; }
  int num_pages() const override { return num_pages_; }
  int max_drafts() const override { return drafter_ ? kMaxDrafts : 0; }
  bool drafts_text() const override { return true; }
  bool drafts_repeated_text() const override { return lookup_.has_value(); }
  bool takes_media() const override { return true; }
  bool takes_adapters() const override { return ranks_->size() == 1; }
  void Submit(StepBatch batch) override;
  StepOutput Collect() override;
  void ForgetSlots() override;

  KvMemory& kv_memory_for_test(int rank = 0) { return ranks_->kv_memory_for_test(rank); }

 private:
  CpuExecutor(const ModelPlan& plan, KvLayout layout, const CpuExecutorOptions& options);
  Status MakeRanks(std::shared_ptr<const TensorSource> source, const CpuExecutorOptions& options);
  void WorkerLoop();
  StepOutput RunStep(StepBatch& batch);
  // Drafts text where the batch leaves drafts to the executor, and leaves out the rows of rounds
  // that are shorter than they may be.
  void DraftText(StepBatch& batch, StepOutput& output);
  // Puts the drafter's ids where the batch leaves them to it.
  void DraftTokens(StepBatch& batch, StepOutput& output);
  // logits [outputs of all sequences, vocab]; scores come before samples.
  void ScoreOutputs(const StepBatch& batch, std::span<const float> logits, StepOutput& output);
  void SampleOutputs(const StepBatch& batch, std::span<const float> logits, StepOutput& output);
  // Samples the last outputs of a sequence: rows [1 + num_drafts, vocab], drafts [num_drafts]; and
  // moves its slot on. hidden_rows [1 + num_drafts, hidden]: what the head read.
  void SampleSequence(const SequenceStep& sequence, int32_t first_position, const float* rows,
                      const float* hidden_rows, const int32_t* drafts, Sampler& sampler,
                      grammar::Work& mask_work, RowMasks& masks, SequenceOutput& output);
  void BindSlots(const StepBatch& batch);
  // The batch as rows, with what towers made in place of placeholder tokens, and adapters.
  StepRows MakeRows(const StepBatch& batch) const;

  const ModelPlan plan_;
  const std::optional<DrafterOptions> drafter_options_;
  const std::optional<LookupLengths> lookup_;
  const std::shared_ptr<ExpertCounts> expert_counts_;  // may be null
  const KvLayout layout_;                              // of a rank
  const int num_pages_;
  ThreadPool threads_;
  SlotTables tables_;
  std::unique_ptr<CpuRanks> ranks_;
  std::unique_ptr<CpuDraftRanks> drafter_;          // null: there is none
  std::vector<std::unique_ptr<Sampler>> samplers_;  // one per thread
  std::vector<RowMasks> masks_;                     // scratch, one per thread
  const int64_t mask_steps_;

  // By slot; they grow as slots are used.
  struct Request {
    std::shared_ptr<const SamplingParams> sampling;
    // How its drafts are drawn; null without a drafter.
    std::shared_ptr<const SamplingParams> draft_sampling;
    PenaltyState history;  // kept where there are penalties
    int32_t num_score_top = 0;
    int32_t prompt_len = 0;
    std::shared_ptr<const SoftTokenRuns> media = {};
    std::shared_ptr<const Adapter> adapter = {};
  };
  // The token of a row within its mask. logits [vocab].
  Result<SampledToken> SampleMasked(const Request& request, const RowMasks& masks, int32_t row,
                                    std::span<const float> logits, uint64_t draw_number,
                                    Sampler& sampler);
  std::vector<Request> requests_;
  SlotConstraints constraints_;
  std::vector<SlotState> slot_states_;
  // With a drafter: [hidden] of the row that gave the slot's last token, behind the final norm.
  std::vector<std::vector<float>> last_hidden_;
  std::vector<RepeatedText> texts_;  // with lookup_: what the slots have so far

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepBatch> submitted_;  // guarded by mutex_, as are the four below
  std::deque<StepOutput> finished_;
  // What a step threw. Steps after it find their slots in an unknown state, so none of them runs;
  // each is collected as this exception, and the last of those clears it.
  std::exception_ptr failure_;
  int num_uncollected_ = 0;
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace lapidary::cpu
