// How the keys of a resident step's attention are dealt out to the blocks, and where they lie.
#pragma once

#include <cstdint>

#include "ops/cuda/resident/resident_entry_runs.h"
#include "ops/cuda/resident/resident_product.cuh"
#include "ops/cuda/resident/resident_program.h"

namespace lapidary::cuda {

inline constexpr int kMaxSplitKeys = 64;
inline constexpr int kFewSplitKeys = 32;

// The most keys of a round whose entries are so long: they must fit into the slots that every ring
// has.
template <int kSlotBytes>
__device__ constexpr int MostRoundKeys(int entry_len) {
  // Attention over keys and values of 512 dims each, apart, is written for the fewer.
  if (entry_len == 1024) return kFewSplitKeys;
  return EntryRunsOf<kSlotBytes>(entry_len).num_slots(kMaxSplitKeys) <= kMinSlots ? kMaxSplitKeys
                                                                                  : kFewSplitKeys;
}

// Keys that are in the cache, and their pages in a group's list; the same in all layers. Of a row
// that is to be stored, all but its own; of one that only looks, all.
struct ResidentSequence {
  int num_cached;
  int table_base;
};

// How the keys of the layers of a group are dealt out.
struct SplitPlan {
  int first_key;
  int end_key;
  int round_keys;      // 32 or 64
  int keys_per_split;  // a multiple of that
  int splits_per_head;
  int num_splits;
  int heads;         // of a KV head
  uint32_t inverse;  // head / heads == head * inverse >> 16

  // A round has at most `most_keys`, and fewer where there are blocks enough.
  __device__ SplitPlan(const ResidentKvGroup& layer, int position, int most_keys) {
    first_key = layer.window > 0 ? max(0, position - layer.window + 1) : 0;
    end_key = position + 1;
    const int most = max(1, static_cast<int>(gridDim.x) / layer.num_kv_heads);
    round_keys = end_key - first_key <= most * kFewSplitKeys ? kFewSplitKeys : most_keys;
    const int rounds = (end_key - first_key + round_keys - 1) / round_keys;
    const int rounds_per_split = (rounds + most - 1) / most;
    keys_per_split = rounds_per_split * round_keys;
    splits_per_head = (rounds + rounds_per_split - 1) / rounds_per_split;
    num_splits = splits_per_head * layer.num_kv_heads;
    heads = layer.num_heads / layer.num_kv_heads;
    inverse = 65536u / heads + 1;
  }
};

// The keys of a block's split.
struct SplitKeys {
  int kv_head;
  int first;
  int end;

  __device__ SplitKeys(const SplitPlan& plan, int split)
      : kv_head(split / plan.splits_per_head),
        first(plan.first_key + split % plan.splits_per_head * plan.keys_per_split),
        end(min(plan.end_key, first + plan.keys_per_split)) {}
};

// The pages of the keys of a round, of one warp: a lane has those of keys `lane` and lane + 32.
struct RoundPages {
  int low = 0;
  int high = 0;

  // Keys from `first` on, below `end`.
  __device__ static RoundPages Load(const int32_t* page_ids, int tokens_per_page, int first,
                                    int end) {
    const int key = first + static_cast<int>(threadIdx.x) % 32;
    return {.low = key < end ? page_ids[key / tokens_per_page] : 0,
            .high = key + 32 < end ? page_ids[(key + 32) / tokens_per_page] : 0};
  }
  // Of the round's key of that index; all lanes ask at once.
  __device__ int Of(int idx) const {
    const int of_low = __shfl_sync(0xffffffffu, low, idx % 32);
    const int of_high = __shfl_sync(0xffffffffu, high, idx % 32);
    return idx < 32 ? of_low : of_high;
  }
};

// The cached entry of a key.
__device__ __forceinline__ const bf16* EntryOf(const ResidentStepCall& call,
                                               const ResidentKv& layer, int64_t page, int kv_head,
                                               int key) {
  const int page_tokens = call.tokens_per_page[layer.group];
  const int64_t slot = int64_t{kv_head} * page_tokens + key % page_tokens;
  return reinterpret_cast<const bf16*>(call.pool + page * call.page_bytes + layer.layer_offset) +
         slot * layer.entry_len;
}

}  // namespace lapidary::cuda
