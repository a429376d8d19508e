// The CUDA executor as the rest of the program sees it: options and a factory, no CUDA types.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "executor/cuda/memory_share.h"
#include "executor/draft_options.h"
#include "executor/executor.h"
#include "kv/kv_layout.h"
#include "model/expert_counts.h"
#include "model/weights.h"
#include "tensor/dtype.h"

namespace lapidary::cuda {

inline constexpr KvFormat kKvFormat = KvFormat::kBF16;  // the one that kernels read

// Where the per-layer embedding table lives: one row of it is read per token.
enum class PlePlacement { kDevice, kHost };

// Which kernels may start before their predecessor has ended. A kernel that starts early is placed
// where there is room, not evenly: behind attention, which fills its SMs unequally, that costs more
// than it gains (docs/notes/2026-11-cuda-executor.md).
enum DependentLaunch : unsigned {
  kDependLinear = 1,           // linear layers behind linear layers
  kDependQueryEntry = 2,       // norms and rotary embedding behind the projection
  kDependAttention = 4,        // attention behind those
  kDependAttentionOutput = 8,  // the output projection behind attention
  kDependOther = 16,           // embeddings, experts, head, sampling
  kDependByDefault = 1 | 2 | 4 | 16,
};

struct CudaExecutorOptions {
  int gpu_ordinal = 0;
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  std::optional<DrafterOptions> drafter = {};
  int max_drafts = 0;  // of a round; with a drafter
  // The KV pool: so many pages (scratch page included), or what this part of the GPU's memory
  // leaves when everything else has its place.
  std::optional<int> num_pages = {};
  MemoryLimit memory = {};
  std::optional<KvLayout> kv_layout = {};  // of kKvFormat; default: MakeKvLayout
  PlePlacement ple_placement = PlePlacement::kDevice;
  uint64_t dummy_seed = 0;                 // without a source
  std::optional<DType> quantisation = {};  // weights are rounded to it (WeightRequest)
  int head_bits = 0;                       // and the head to so many
  bool skip_unneeded_rows = true;
  bool batch_invariant = false;
  bool use_graphs = true;
  bool resident_steps = true;  // one-token steps as one kernel, where the model allows it
  unsigned dependent_launches = kDependByDefault;    // DependentLaunch bits
  std::shared_ptr<ExpertCounts> expert_counts = {};  // null: they are not counted
  bool synchronous = false;  // wait after every kernel, so that a fault names its kernel
};

// Weights of `source` (which is not needed afterwards), or dummy ones made on the GPU without. An
// error where the model has shapes our kernels do not know, the GPU too little memory, or this
// build no CUDA part.
Result<std::unique_ptr<Executor>> MakeCudaExecutor(const ModelPlan& plan,
                                                   const TensorSource* source,
                                                   const CudaExecutorOptions& options);

}  // namespace lapidary::cuda
