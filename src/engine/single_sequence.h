// One sequence run to its end on an executor: what `generate`, `chat` and `logits` need.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "executor/executor.h"

namespace lapidary {

// Owns the pages of one growing sequence. Several may share an executor only if they share its
// pool.
class SingleSequence {
 public:
  // `executor` must outlive the sequence. Steps have at most `max_chunk` rows. Without `sampling`
  // there are logits only; draws are numbered from `prompt_len` on. `media`, `adapter`: see
  // SlotBinding; steps have more rows where an image does.
  SingleSequence(Executor& executor, int32_t max_chunk,
                 std::shared_ptr<const SamplingParams> sampling = nullptr, int32_t prompt_len = 0,
                 std::shared_ptr<const SoftTokenRuns> media = nullptr,
                 std::shared_ptr<const Adapter> adapter = nullptr);

  int32_t length() const { return pages_.length(); }

  // Appends ids to the sequence. Where asked for, logits of every appended row, chunk by chunk, as
  // on_logits(rows [n, vocab]); no tokens are sampled.
  Status Append(std::span<const int32_t> ids,
                const std::function<Status(std::span<const float>)>& on_logits);

  // Appends ids and samples the token that follows, as `sampling` of the constructor says.
  Result<SampledToken> AppendAndSample(std::span<const int32_t> ids);

  // One round behind the token sampled last: what the executor's drafter proposes (draft_ids,
  // draft_logits) and what counts of it. The sequence ends here.
  Result<StepOutput> DraftRound(int32_t num_drafts);

 private:
  // Rows of the next step, of so many that are left.
  int32_t ChunkRows(size_t num_left) const;
  // One step; `step` says what to do with its rows.
  Result<StepOutput> Run(std::span<const int32_t> ids, SequenceStep step, StepBatch batch);

  Executor& executor_;
  const int32_t max_chunk_;
  PagePool pool_;
  SequencePages pages_;
  const std::shared_ptr<const SoftTokenRuns> media_;
  std::optional<SlotBinding> binding_;  // for the first step
};

}  // namespace lapidary
