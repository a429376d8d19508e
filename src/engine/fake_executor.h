// An executor for tests of the scheduler and the engine: no model, but every promise of the
// bookkeeping checked.
//
// Each slot of each page remembers which token prefix was written there. A row verifies that the
// keys it may see form one unbroken chain up to itself, in both groups; its "sampled" token is a
// function of that prefix alone, and of the grammar if there is one. So outputs are known in
// advance, whatever was batched, cut, preempted, cached or drafted. Its drafter proposes those very
// outputs, and now and then something else, as an assistant and as text of a form. Where a test
// asks for it, sequences fail or are late at random.
#pragma once

#include <deque>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

#include "executor/executor.h"
#include "executor/slot_constraints.h"
#include "executor/slot_tables.h"
#include "kv/prefix_cache.h"

namespace lapidary {

class FakeExecutor : public Executor {
 public:
  FakeExecutor(const ModelPlan& plan, const KvLayout& layout, int num_pages);

  const ModelPlan& plan() const override { return plan_; }
  const KvLayout& kv_layout() const override { return layout_; }
  int num_pages() const override { return num_pages_; }
  int max_drafts() const override { return kMaxDrafts; }
  bool drafts_text() const override { return true; }
  bool drafts_repeated_text() const override { return true; }
  void Submit(StepBatch batch) override;
  StepOutput Collect() override;

  // Of the outputs that are scored or sampled, one in so many fails its sequence; 0: none does. A
  // slot that has failed may be named by steps that were planned before that was seen, and by none
  // after them until it is bound again.
  void FailOneIn(int num_outputs) { fails_one_in_ = num_outputs; }
  int num_failures() const { return num_failures_; }
  // PrefixHash::low of the tokens up to one of a page, hashed with seed 0; 0: none was written.
  uint64_t HashAt(PageIndex page, int32_t token) const {
    const Entry& entry = pages_[page][token];
    return entry.is_written ? entry.after.hash().low : 0;
  }
  // Of the rows that are sampled, one in so many is late; as above.
  void BeLateOneIn(int num_rows) { is_late_one_in_ = num_rows; }
  int num_late() const { return num_late_; }
  // What the masks of a step may take.
  void set_mask_steps(int64_t num_steps) { mask_steps_ = num_steps; }
  size_t num_submitted() const { return submitted_.size(); }

  // What a prompt is continued with.
  static std::vector<int32_t> Continuation(std::span<const int32_t> prompt, int count,
                                           int vocab_size);
  // The logprobs a prompt's tokens get, from the second on.
  static std::vector<float> Scores(std::span<const int32_t> prompt);

 private:
  // What one token's entry holds: the hash of the sequence up to and including it.
  struct Entry {
    PrefixHasher before{0};
    PrefixHasher after{0};
    bool is_written = false;
  };

  using Writes = std::vector<std::pair<Entry*, Entry>>;

  // Where a slot stands, and what it may be asked.
  struct Slot {
    bool is_bound = false;
    bool has_sampling = false;
    int32_t num_score_top = 0;
    int32_t max_len = 0;
    int32_t length = 0;
    int32_t last_token = 0;
    bool has_failed = false;  // or was late
    int num_steps_since = 0;  // that named it since
  };

  bool IsLateNow() { return is_late_one_in_ > 0 && lateness_() % is_late_one_in_ == 0; }
  void BeLate(Slot& slot, SequenceOutput& output);
  bool FailsNow() { return fails_one_in_ > 0 && failures_() % fails_one_in_ == 0; }
  void Fail(Slot& slot, SequenceOutput& output);
  void BindSlots(const StepBatch& batch);
  Entry& EntryAt(const SequenceStep& sequence, int group_idx, int32_t position);
  // The prefix hash before the sequence's first new row, with every key in reach checked.
  PrefixHasher CheckCachedKeys(const SequenceStep& sequence, int32_t first_position);
  // Puts the slot's last token and the drafter's ids where the batch leaves them to the executor.
  void ResolveIds(const SequenceStep& sequence, PrefixHasher prefix, std::span<int32_t> ids);
  // One of those that the grammar allows.
  static int32_t NextAllowed(const PrefixHasher& prefix, const RowMasks& masks, int32_t row);
  // What the step has of its drafts where it says how many each source may propose.
  void DraftText(std::span<int32_t> ids, SequenceStep& sequence, SequenceOutput& output);
  void RunSequence(SequenceStep sequence, std::span<int32_t> ids,
                   std::span<const int32_t> scored_ids, Writes& writes, SequenceOutput& output);

  const ModelPlan plan_;
  const KvLayout layout_;
  const int num_pages_;
  // [page][token]; a page belongs to one group at a time, larger tables serve both.
  std::vector<std::vector<Entry>> pages_;
  std::unordered_map<int32_t, Slot> slots_;
  SlotTables tables_;
  SlotConstraints constraints_;
  std::mt19937 random_{17};  // the drafter's mistakes
  std::mt19937 failures_{19};
  std::mt19937 lateness_{23};
  int fails_one_in_ = 0;
  int num_failures_ = 0;
  int is_late_one_in_ = 0;
  int num_late_ = 0;
  int64_t mask_steps_ = kMaskStepsPerThread;
  std::deque<StepBatch> submitted_;
};

}  // namespace lapidary
