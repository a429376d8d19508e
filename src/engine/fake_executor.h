// An executor for tests of the scheduler and the engine: no model, but every promise of the
// bookkeeping checked.
//
// Each slot of each page remembers which token prefix was written there. A row verifies that the
// keys it may see form one unbroken chain up to itself, in both groups; its "sampled" token is a
// function of that prefix alone. So outputs are known in advance, whatever was batched, cut,
// preempted, cached or drafted.
#pragma once

#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "executor/executor.h"
#include "kv/prefix_cache.h"

namespace lapidary {

class FakeExecutor : public Executor {
 public:
  FakeExecutor(const ModelPlan& plan, const KvLayout& layout, int num_pages);

  const ModelPlan& plan() const override { return plan_; }
  const KvLayout& kv_layout() const override { return layout_; }
  int num_pages() const override { return num_pages_; }
  void Submit(StepBatch batch) override;
  StepOutput Collect() override;

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

  Entry& EntryAt(const SequenceStep& sequence, int group_idx, int32_t position);
  // The prefix hash before the sequence's first new row, with every key in reach checked.
  PrefixHasher CheckCachedKeys(const SequenceStep& sequence);
  void RunSequence(const SequenceStep& sequence, std::span<const int32_t> ids, Writes& writes,
                   SequenceOutput& output);

  const ModelPlan plan_;
  const KvLayout layout_;
  const int num_pages_;
  // [page][token]; a page belongs to one group at a time, larger tables serve both.
  std::vector<std::vector<Entry>> pages_;
  std::unordered_map<int32_t, int32_t> last_token_;  // by slot
  std::deque<StepBatch> submitted_;
};

}  // namespace lapidary
