// Rounds of drafts that were planned longer than they turn out.
//
// Which text can be drafted shows when a step begins, with every token before it known; the host
// planned the step before. So it plans for as many drafts as there may be, and what none proposes
// is cut off here.
#pragma once

#include <cstdint>
#include <span>

#include "executor/step_batch.h"

namespace lapidary {

// Leaves `num_drafts` of the sequence's drafts.
void ShortenRound(int32_t num_drafts, SequenceStep& step);

// The same for all sequences of a batch that have a quota: by sequence, num_drafts[i] of them.
void ShortenRounds(std::span<const int32_t> num_drafts, StepBatch& batch);

}  // namespace lapidary
