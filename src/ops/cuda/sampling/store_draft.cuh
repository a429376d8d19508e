// Where a draft goes: the row that verifies it, what its token is compared with, the next draft.
#pragma once

#include "ops/cuda/sampling/sampling.h"

namespace lapidary::cuda {

// One thread.
__device__ __forceinline__ void StoreDraft(const DraftDraws& draft, int round, int32_t id) {
  SamplingRow& spec = draft.spec[draft.rounds[round].first_sampled + draft.draft_idx];
  spec.draft = id;
  draft.token_ids[spec.step_row + 1] = id;
  draft.last_tokens[round] = id;
}

}  // namespace lapidary::cuda
