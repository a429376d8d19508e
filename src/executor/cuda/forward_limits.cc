#include "executor/cuda/forward_limits.h"

#include <algorithm>
#include <array>

namespace lapidary::cuda {
namespace {

// Decode steps are padded to these. Close enough that padding costs little, few enough to capture.
constexpr std::array kGraphSequences = {1,  2,  4,  8,   16,  24,  32,  48,
                                        64, 80, 96, 112, 128, 160, 192, 256};

}  // namespace

int PaddedSequences(int sequences, int rows_per_sequence) {
  // Where drafts are verified every sequence costs arithmetic, not only its keys.
  constexpr int kManySequences = 32;
  constexpr int kMostExact = 128;
  if (rows_per_sequence > 1 && sequences > kManySequences && sequences <= kMostExact) {
    return (sequences + 7) / 8 * 8;
  }
  const auto it = std::lower_bound(kGraphSequences.begin(), kGraphSequences.end(), sequences);
  return it == kGraphSequences.end() ? 0 : *it;
}

CudaExecutorOptions WithRoomForPadding(CudaExecutorOptions options) {
  options.max_num_seqs = std::max(options.max_num_seqs, PaddedSequences(options.max_num_seqs, 1));
  return options;
}

CudaForwardLimits ForwardLimits(const CudaExecutorOptions& options) {
  CudaForwardLimits limits;
  limits.max_rows = std::max(options.max_num_batched_tokens, options.max_num_seqs);
  limits.max_drafts = options.drafter ? options.max_drafts : 0;
  // A step that verifies drafts has its logits in one piece, unless it is very large: the head's
  // weights are read once for each.
  constexpr int kMostVerified = 512;
  const int verified = std::min(options.max_num_seqs * (1 + limits.max_drafts), kMostVerified);
  limits.max_logit_rows = std::max({options.max_num_seqs, verified, 16});
  limits.max_sequences = options.max_num_seqs;
  limits.max_partials = kMaxAttentionPartials;
  limits.batch_invariant = options.batch_invariant;
  limits.skip_unneeded_rows = options.skip_unneeded_rows;
  limits.counts_experts = options.expert_counts != nullptr;
  limits.resident_steps = options.resident_steps && !limits.counts_experts;
  limits.dependent_launches = options.synchronous ? 0 : options.dependent_launches;
  return limits;
}

}  // namespace lapidary::cuda
