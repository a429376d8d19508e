// Logits to tokens on the device: the sampler of sampling/sampler.h, bit for bit the same draw.
//
// How a sequence's tokens are drawn belongs to its slot and is set once; a step says which rows
// are drawn for which slots. Tokens depend on their row, the settings, the seed and the position
// alone; integer masses and maxima have no order, so neither the grid nor the batch shows in a
// result.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/planned_step.h"
#include "ops/cuda/sampling/sampling_scratch.h"
#include "ops/cuda/sampling/sampling_types.h"
#include "ops/cuda/slot_state.h"

namespace lapidary::cuda {

// Draws for a drafter. Row i of the call is that of round i: it draws, from the drafter's logits of
// row i, as the sampled row does that the draft will be compared with.
struct DraftDraws {
  const PlannedRound* rounds = nullptr;  // null: sampled rows are drawn
  int draft_idx = 0;                     // of every round
  bool likeliest = true;                 // whatever the temperature of the slot
  // Where the drafts go.
  SamplingRow* spec = nullptr;     // [sampled rows of the step]
  int32_t* token_ids = nullptr;    // [rows of the step]
  int32_t* last_tokens = nullptr;  // [rounds]
};

struct SamplingCall {
  int rows = 0;
  // The logits at hand: rows [first, first + num) of the step. Rows of `spec` that read others are
  // left alone, for another call.
  int first_logits_row = 0;
  int num_logits_rows = 0;
  int vocab_size = 0;
  SamplingNeeds needs;
  float* logits = nullptr;            // [num_logits_rows, vocab]; as before once the call is done
  const SamplingRow* spec = nullptr;  // [rows], rows of a sequence in order
  const SamplingSlot* slots = nullptr;
  SlotState* states = nullptr;      // by slot
  int32_t* lists = nullptr;         // of all slots
  int32_t* replaced = nullptr;      // scratch: SamplingRow::replaced_begin
  SampledRow* out = nullptr;        // [rows]
  void* scratch = nullptr;          // SamplingScratchBytes(num_logits_rows, vocab_size)
  const uint32_t* masks = nullptr;  // [mask rows, MaskWords], where needs.masks
  DraftDraws draft;
  // By place in a round: drafts are accepted at these rates (sampling/simulated_acceptance.h), not
  // where they are the token. Null: as they should be.
  const float* simulated_rates = nullptr;
  int num_simulated = 0;
};

inline constexpr int kMaxSampledVocab = 1 << 22;
Status SamplingSupports(int vocab_size);

// Draws and scores. Rounds of one row are accepted, and their slots moved on; rounds with drafts
// wait for all their rows and RunAccept. Draws for a drafter change neither slots nor `out`.
void RunSampling(const LaunchContext& context, const SamplingCall& call);
// Once per step with drafts: accepts what was drawn and moves the slots on.
void RunAccept(const LaunchContext& context, const SamplingCall& call);

// A slot that a sequence takes over.
struct SlotBindingRecord {
  int32_t slot = 0;
  int32_t num_history = 0;
  int32_t words_begin = 0;  // of its lists in SlotBindingsCall::words
  int32_t num_words = 0;
  int32_t lists_begin = 0;  // where they go
  int32_t unused = 0;
  SamplingSlot sampling;
};
struct SlotBindingsCall {
  int num_bindings = 0;
  const SlotBindingRecord* bindings = nullptr;
  const int32_t* words = nullptr;
  SamplingSlot* slots = nullptr;
  SlotState* states = nullptr;
  int32_t* lists = nullptr;
};
void RunBindSlots(const LaunchContext& context, const SlotBindingsCall& call);

}  // namespace lapidary::cuda
