// How much fits: the KV pool that a GPU, or a machine, of a given memory leaves room for, in closed
// form and before loading. On a GPU weights and workspace are what the executor will allocate, byte
// for byte.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "executor/cuda/cuda_options.h"
#include "kv/kv_layout.h"
#include "load/limits.h"
#include "model/weight_plan.h"

namespace lapidary {

// A GPU, and what `serve` would be told about it.
struct MemoryRequest {
  int num_ranks = 1;                  // that share the model; memory and plan are those of one
  int64_t memory_bytes = 0;           // of the device
  int num_sms = 0;                    // of the device; 0: not known
  std::optional<KvFormat> kv_format;  // absent: the device's
  int64_t kv_cache_bytes = 0;         // > 0: the pool's size itself; memory is not looked at
  int64_t tower_bytes = 0;            // what images and audio take before anything else
  BatchLimits limits;
  std::optional<WeightPlan> weights;  // absent: those of dummy weights
  // Its limits and pool are those above.
  cuda::CudaExecutorOptions cuda;
};

struct MemoryPlan {
  KvLayout layout;
  int max_model_len = 0;
  int64_t usable_bytes = 0;  // memory * utilization
  int64_t weight_bytes = 0;
  int64_t tower_bytes = 0;         // of images and audio
  int64_t workspace_bytes = 0;     // what the executor needs for the largest step
  int64_t pool_bytes = 0;          // what is left for KV
  int64_t num_pages = 0;           // scratch page included
  int64_t pages_per_sequence = 0;  // of max_model_len tokens
  int64_t max_sequences = 0;       // of that length, at once
  int64_t max_tokens = 0;          // in sequences of that length, the last one cut short
  double waste = 0.0;              // largest share of a page that a group cannot use
};

// An error when not even one page is left.
Result<MemoryPlan> PlanMemory(const ModelPlan& plan, const MemoryRequest& request);

// The same of a machine's memory and the CPU executor; the workspace is what the
// buffers of the largest step grow to. Of several ranks, what the largest one needs.
Result<MemoryPlan> PlanCpuMemory(const ModelPlan& plan, const MemoryRequest& request);

// "143771MiB", "80GB" (1e9), "64GiB" (2^30), "1.5TB", or plain bytes.
Result<int64_t> ParseBytes(std::string_view text);

}  // namespace lapidary
