// How large a step of the CUDA executor may be: what its buffers are sized for. No CUDA types.
#pragma once

#include "executor/cuda/cuda_options.h"

namespace lapidary::cuda {

struct CudaForwardLimits {
  int max_rows = 2048;       // of a step
  int max_logit_rows = 256;  // of the logits buffer; more outputs are computed in batches
  int max_sequences = 256;   // of a step
  int max_partials = 1024;   // of split attention
  int max_drafts = 0;        // of a round; 0: there is no drafter
  int num_sms = 160;         // of the GPU; where none is known, more than any of them has
  bool batch_invariant = false;
  bool skip_unneeded_rows = true;  // as RunDecoder
  bool resident_steps = true;      // one-token steps as one kernel, where the model allows it
  bool counts_experts = false;     // by layer; then no step is one kernel
  unsigned dependent_launches = kDependByDefault;  // DependentLaunch bits
  // Of the weights (LimitsOf in memory_needs.h): the largest tiled matrix of a layer in bf16, and
  // rows that a one-kernel step deals to its blocks at a time.
  int64_t dequantised_bytes = 0;
  int row_granule = 2;
};

inline constexpr int kMaxAttentionPartials = 4096;

// Sequences of the graph that a step of so many runs as, each with one row or with its drafts; 0:
// no graph has so many. Never more with drafts than without.
int PaddedSequences(int sequences, int rows_per_sequence);

// The executor's own: a step of the most sequences is padded too, so there is room for its padding.
CudaExecutorOptions WithRoomForPadding(CudaExecutorOptions options);
// Of options with room for padding.
CudaForwardLimits ForwardLimits(const CudaExecutorOptions& options);

}  // namespace lapidary::cuda
