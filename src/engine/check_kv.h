// --check-kv: every page index and length of a step, verified before the executor sees it.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/json_fields.h"
#include "executor/slot_tables.h"
#include "executor/step_batch.h"
#include "kv/kv_layout.h"

namespace lapidary {

class KvChecker {
 public:
  // `plan` and `layout` must outlive it.
  KvChecker(const ModelPlan& plan, const KvLayout& layout) : plan_(plan), layout_(layout) {}

  // Steps in the order they will run: the checker keeps the slots' tables as the executor does.
  // Nothing when the step is sound; otherwise a report of the first violation: what is wrong, the
  // sequence (index in the batch and slot), group, a layer of it, its table and lengths. Where a
  // length is not known yet, every value it may have is checked.
  std::optional<Json> FindViolation(const StepBatch& batch, int num_pages);

 private:
  // Pages written so far in this step, by writer: two sequences must not write the same one.
  using Writers = std::map<PageIndex, size_t>;

  std::optional<Json> CheckGroup(const StepBatch& batch, size_t sequence_idx, int group_idx,
                                 int num_pages, Writers& writers) const;
  // What a sequence reads no other writes: pages are shared once they are complete.
  std::optional<Json> CheckReads(const StepBatch& batch, size_t sequence_idx, int group_idx,
                                 const Writers& writers) const;
  int32_t FirstBlockRead(const SequenceStep& sequence, int group_idx) const;
  Json Report(std::string problem, const StepBatch& batch, size_t sequence_idx, int group_idx,
              int32_t block) const;

  const ModelPlan& plan_;
  const KvLayout& layout_;
  SlotTables tables_;
};

}  // namespace lapidary
