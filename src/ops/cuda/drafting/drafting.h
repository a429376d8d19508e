// What an assistant does beside its layers: its input rows, the head that scores some tokens only,
// and the target's hidden rows that the next round begins with.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/rope_table.h"
#include "ops/cuda/sampling/sampling.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

// inputs[row] = [E[token] * scale | hidden], the hidden row being that of the round's slot for the
// first draft, and what the assistant fed back for the others.
struct DraftInputsCall {
  int rows = 0;
  int backbone = 0;                 // hidden size of the target, a multiple of 8
  const int32_t* tokens = nullptr;  // [rows]
  MatrixRef embedding;              // [vocab, backbone], the target's
  float scale = 1.0f;
  const bf16* hidden = nullptr;              // [rows, backbone], or [slots, backbone] with `rounds`
  const PlannedRound* rounds = nullptr;      // [rows]; null: hidden rows are those of the rows
  const PlannedSequence* planned = nullptr;  // of the step, where a round finds its slot
  bf16* inputs = nullptr;                    // [rows, 2 * backbone]
  // With rounds: the rotary tables of all drafts too.
  const int32_t* positions = nullptr;  // [rows]
  RopeTableFill rope[kMaxRopeTables];
};
void RunDraftInputs(const LaunchContext& context, const DraftInputsCall& call);

// Keeps, for each sampled round of a step, the hidden row behind the final norm that gave its last
// token: hidden[slot] = rmsnorm(stream[row]) * norm.
struct KeepHiddenCall {
  int sampled = 0;
  int hidden_size = 0;
  float eps = 1e-6f;
  const SamplingRow* spec = nullptr;         // [sampled]
  const SampledRow* sampled_rows = nullptr;  // [sampled]
  const float* stream = nullptr;             // [outputs, hidden]
  const float* norm = nullptr;               // [hidden]
  bf16* hidden = nullptr;                    // [slots, hidden]
};
void RunKeepHidden(const LaunchContext& context, const KeepHiddenCall& call);

// The best token of each row so far, while blocks look for it: zero before the first call, and
// kernels leave zeros.
struct RowWinners {
  unsigned long long* keys = nullptr;  // [rows]
  int32_t* counters = nullptr;         // [rows]
};

// The likeliest token of each row of logits becomes its draft.
struct LikeliestCall {
  int rows = 0;
  int vocab_size = 0;
  const float* logits = nullptr;  // [rows, vocab]
  RowWinners winner;
  DraftDraws draft;
};
void RunLikeliest(const LaunchContext& context, const LikeliestCall& call);

// An ordered head: of each row the best `top_k` centroids, and of their tokens the likeliest, or
// all of them in a row of logits that is -inf elsewhere.
struct OrderedHeadCall {
  int rows = 0;
  int hidden_size = 0;  // a multiple of 8
  int vocab_size = 0;
  int num_centroids = 0;
  int top_k = 0;
  const bf16* x = nullptr;                  // [rows, hidden]
  const float* centroid_scores = nullptr;   // [rows, num_centroids]
  MatrixRef head;                           // [vocab, hidden], tokens of a centroid together
  const int32_t* token_ordering = nullptr;  // [vocab]: the token of a row of the head
  int32_t* chosen = nullptr;                // [rows, top_k] scratch
  // The likeliest become drafts, or every score goes to `logits`.
  DraftDraws draft;
  RowWinners winner;
  float* logits = nullptr;  // [rows, vocab]; null: drafts
};
Status OrderedHeadSupports(int num_centroids, int top_k);
inline constexpr int kMaxCentroids = 4096;
void RunOrderedHead(const LaunchContext& context, const OrderedHeadCall& call);

}  // namespace lapidary::cuda
