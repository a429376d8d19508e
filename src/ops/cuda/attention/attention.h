// Attention of a step's queries over cached pages and the step's own new entries.
//
// Query rows and cached entries are in the form KvEntryPlan describes: a score is one dot product
// of key_len values, the value is the entry's head; outputs are in the order of the head's dims.
// The attention scale is 1. Supported entries (value_len, key_offset, key_len): (256, 256, 256),
// (512, 512, 512), (512, 128, 512); 1 to kMaxHeadsPerKvHead heads per KV head; any number of tokens
// per page.
//
// Same items, same bits. With batch_invariant a query's bits depend on its own row and its keys
// alone: not on the rows beside it, the chunks its prompt came in, the splits, the tile size, nor
// on which keys are cached and which are new.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "model/kv_entry.h"
#include "ops/cuda/attention/attention_scratch.h"
#include "ops/cuda/attention/attention_work.h"
#include "ops/cuda/launch.h"

namespace lapidary::cuda {

inline constexpr int kMaxHeadsPerKvHead = 16;
Status AttentionSupports(const KvEntryPlan& entry, int heads_per_kv_head);

struct AttentionCall {
  AttentionGeometry geometry;
  KvEntryPlan entry;
  const bf16* queries = nullptr;  // [queries, num_heads, key_len]
  bf16* out = nullptr;            // [queries, num_heads, value_len]
  // Cached entry of (page, kv head, slot): bytes at
  //   pool + page * page_bytes + layer_offset + ((kv_head * tokens_per_page) + slot) * entry bytes
  const std::byte* pool = nullptr;
  int64_t page_bytes = 0;
  int64_t layer_offset = 0;
  int tokens_per_page = 0;
  const bf16* new_entries = nullptr;  // [rows of the step, num_kv_heads, entry_len]
  // Device memory, filled anew each step; the item count is read by the kernel, not the host. The
  // buffer of items is at least AttentionBlocks() long, however many there are.
  const int32_t* page_ids = nullptr;
  const AttentionSequence* sequences = nullptr;
  const AttentionItem* items = nullptr;
  const int32_t* num_items = nullptr;
  // [queries]: how many keys behind its own position a query sees; null: none. A later query of a
  // sequence sees at least as far as an earlier one.
  const int32_t* keys_ahead = nullptr;
  int tile_rows = 64;            // as in AttentionWorkOptions; 128 is for value_len 256 only
  bool batch_invariant = false;  // as in AttentionWorkOptions
  float* partials = nullptr;     // AttentionPartialBytes(...), shared by all layers
  int32_t* counters = nullptr;   // [max_partials], zero before the first call; kernels leave zeros
};

// Blocks of a launch: AttentionWorkOptions::num_blocks.
int AttentionBlocks(const DeviceInfo& device, const KvEntryPlan& entry, int tile_rows,
                    bool batch_invariant);

// One launch of a fixed grid whatever the items are, so graphs can replay it.
void RunAttention(const LaunchContext& context, const AttentionCall& call);

}  // namespace lapidary::cuda
