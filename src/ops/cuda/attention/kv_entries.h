// Between the q/k/v projection and attention: norms, rotary embedding, cached forms; and the way of
// new entries into their pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "model/kv_entry.h"
#include "ops/cuda/launch.h"

namespace lapidary::cuda {

// raw [rows, (num_heads + kv parts) * head_dim] = [q | k | v] (k and v of owners only, no v where K
// is V) to queries in cached form and new entries (KvEntryPlan).
struct QueryEntryCall {
  int rows = 0;
  int num_heads = 0;
  int num_kv_heads = 0;  // of this layer's own projection: 0 where it owns no KV
  int head_dim = 0;
  bool k_is_v = false;
  KvEntryPlan entry;
  float eps = 1e-6f;
  const bf16* raw = nullptr;
  const float* q_norm = nullptr;        // [head_dim]
  const float* k_norm = nullptr;        // [head_dim], own
  const float* owner_k_norm = nullptr;  // [head_dim], of the layer whose KV is read
  const float2* rope = nullptr;         // [rows of the step, RopeRowPairs], of embedding.h
  int rotary_pairs = 0;
  const int32_t* rope_rows = nullptr;  // [rows] row in `rope`; null: the same
  bf16* queries = nullptr;             // [rows, num_heads, key_len]
  bf16* entries = nullptr;             // [rows, num_kv_heads, entry_len]
};
Status QueryEntrySupports(int head_dim);
void RunQueryEntry(const LaunchContext& context, const QueryEntryCall& call);

// The new entries of one owning layer.
struct StoredLayer {
  const bf16* entries = nullptr;  // [rows, num_kv_heads, entry_len]
  int64_t layer_offset = 0;       // bytes from a page's start
  int num_kv_heads = 0;
  int entry_len = 0;
  int group = 0;
  int tokens_per_page = 0;
};

struct StoreEntriesCall {
  int rows = 0;
  int num_layers = 0;
  int max_kv_heads = 0;                 // of these layers
  const StoredLayer* layers = nullptr;  // device, [num_layers]
  // Where each row goes: page (0, the scratch page: nowhere) and slot, by group.
  const int32_t* pages[kNumKvGroups] = {};  // [rows]
  const int32_t* slots[kNumKvGroups] = {};
  std::byte* pool = nullptr;
  int64_t page_bytes = 0;
};
void RunStoreEntries(const LaunchContext& context, const StoreEntriesCall& call);

// Whole pages, one after the other: a later copy may read what an earlier one wrote.
void RunCopyPages(const LaunchContext& context, std::byte* pool, int64_t page_bytes,
                  const int32_t* from_to, int num_copies);

}  // namespace lapidary::cuda
