// Driving an executor step by step, for tests that compare its bits between modes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "executor/executor.h"

namespace lapidary {

using Logits = std::vector<float>;

std::vector<int32_t> RandomTokens(const ModelPlan& plan, int seed, int count);

// Adds a sequence's next rows to a batch; the last `num_outputs` of them give logits. At its start
// the slot is bound, without sampling unless the batch has a binding for it.
void AddStep(SequencePages& pages, std::span<const int32_t> ids, int num_outputs, int32_t slot,
             StepBatch& batch);

// Logits of every row, the prompt cut into the given chunk sizes (repeated to the end).
Logits RunInChunks(Executor& executor, std::span<const int32_t> ids,
                   const std::vector<int>& chunks);

// Logits of the last row of chunks of which only that is wanted, with one between of which none is.
Logits RunWithUnneededRows(Executor& executor, std::span<const int32_t> ids);

// Logits of `ids` at the positions from `position` on. Their past is the pages of `past` over and
// over: a long context without the time it takes to compute one, the same for every executor.
// `position` and the length of `past` are multiples of the page sizes.
Logits RunAtPosition(Executor& executor, std::span<const int32_t> past, int32_t position,
                     std::span<const int32_t> ids, const std::vector<int>& chunks);

void ExpectSameBits(const ModelPlan& plan, const Logits& expected, const Logits& actual,
                    const std::string& mode);

}  // namespace lapidary
