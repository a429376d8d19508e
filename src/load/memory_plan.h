// How much fits: the KV pool that a given memory leaves room for, in closed form and before
// loading.
#pragma once

#include <array>
#include <cstdint>

#include "base/result.h"
#include "kv/kv_layout.h"

namespace lapidary {

struct MemoryRequest {
  int64_t memory_bytes = 0;    // of the device
  double utilization = 0.9;    // share of it that may be used
  int64_t kv_cache_bytes = 0;  // > 0: the pool's size itself; memory is not looked at
  int max_model_len = 0;       // 0: the model's context
  int max_num_seqs = 256;
  int max_num_batched_tokens = 8192;
  int sliding_slack = 32;
  int element_bytes = 2;  // of a cached value
  int weight_bytes = 2;   // of a parameter
};

struct MemoryPlan {
  KvLayout layout;
  int max_model_len = 0;
  int64_t usable_bytes = 0;  // memory * utilization
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;     // activations and logits of the largest step
  int64_t pool_bytes = 0;          // what is left for KV
  int64_t num_pages = 0;           // scratch page included
  int64_t pages_per_sequence = 0;  // of max_model_len tokens
  int64_t max_sequences = 0;       // of that length, at once
  int64_t max_tokens = 0;          // in sequences of that length, the last one cut short
  double waste = 0.0;              // largest share of a page that a group cannot use
};

// An error when not even one page is left.
Result<MemoryPlan> PlanMemory(const ModelPlan& plan, const MemoryRequest& request);

// Activations of a step of `num_rows` rows (bf16, the widest layer's buffers at once) and f32
// logits of `num_outputs` of them.
int64_t WorkspaceBytes(const ModelPlan& plan, int64_t num_rows, int64_t num_outputs);

// "143771MiB", "80GB" (1e9), "64GiB" (2^30), "1.5TB", or plain bytes.
Result<int64_t> ParseBytes(std::string_view text);

}  // namespace lapidary
