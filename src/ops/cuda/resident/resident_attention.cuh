// Attention of a resident step: one query row, its keys dealt out to the blocks.
//
// A split is a KV head and some of its keys, a round of kKeys at a time:
//   1. scores: a warp multiplies all heads of the KV head with 8 keys (or with half of their dims);
//   2. every warp takes the maxima and P = 2^(score - maximum) for itself;
//   3. warp w adds P V for its eighth of the columns.
// Cached keys and values come through the ring, before the queries: where they lie does not depend
// on what this step computes. What a split leaves for the others: resident_partials.cuh.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/head_row.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/resident/resident_entry_runs.h"
#include "ops/cuda/resident/resident_exchange.cuh"
#include "ops/cuda/resident/resident_partials.cuh"
#include "ops/cuda/resident/resident_product.cuh"
#include "ops/cuda/resident/resident_program.h"
#include "ops/cuda/resident/resident_splits.cuh"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {

inline constexpr int kMaxEntryLen = 1024;
inline constexpr int kMaxHeadDim = 512;

// In shared memory, where x lies in other phases. Behind it the queries of a split,
// ResidentQueryBytes of the layer.
struct ResidentAttentionMemory {
  // [parts of the dims, kSplitHeads, kKeys + 8]
  alignas(16) float scores[2 * kSplitHeads * (32 + 8)];

  __device__ std::byte* queries() { return reinterpret_cast<std::byte*>(this + 1); }
};

// In shared memory too, of its own: what is known before the phase (PrepareSplit), and the entry.
struct ResidentEntries {
  uint32_t rows[2][kMaxSplitKeys];  // of the keys of two rounds, used in turns: shared addresses
  alignas(16) bf16 made[kMaxEntryLen];  // of the new token; zero before there is one
  alignas(16) float q_norm[kMaxHeadDim];
  float k_norm[kMaxHeadDim];
  float owner_k_norm[kMaxHeadDim];
  float2 rope[kMaxHeadDim / 2];
};

// One warp, some phases before: loads the factors of this block's part in a layer's attention.
__device__ __forceinline__ void PrepareSplit(const ResidentAttention& layer, const SplitPlan& plan,
                                             ResidentEntries& entries) {
  if (blockIdx.x >= plan.num_splits) return;
  for (int dim = 4 * (threadIdx.x % 32); dim < layer.head_dim; dim += 4 * 32) {
    CopyAsync(entries.q_norm + dim, layer.q_norm + dim);
    if (layer.owns_kv) CopyAsync(entries.k_norm + dim, layer.k_norm + dim);
    if (!layer.keys_are_apart) CopyAsync(entries.owner_k_norm + dim, layer.owner_k_norm + dim);
  }
  // In whole pieces of 16 bytes: pairs behind the last rotary one are not used.
  for (int pair = 2 * (threadIdx.x % 32); pair < layer.rotary_pairs; pair += 2 * 32) {
    CopyAsync(entries.rope + pair, layer.rope + pair);
  }
  CommitCopies();
  WaitForCopies<0>();
}

// Packets of a layer's new entry, of one KV head, and their number in the phase of that number.
__device__ __forceinline__ uint64_t* KeptEntry(const ResidentAttention& layer, int kv_head,
                                               int entry_len) {
  return layer.kept + kv_head * (entry_len / 2);
}
__device__ __forceinline__ uint32_t NumberOfOwner(const ResidentAttention& layer, uint32_t number) {
  return number - layer.phases_since_owner;
}

template <int kSlotBytes, int kKeys, int kValueLen, int kKeyOffset, int kKeyLen>
class AttentionSplit {
 public:
  // Of block number `split`; num_splits of them have one.
  __device__ AttentionSplit(float eps, const ResidentAttention& layer, int num_cached,
                            const SplitPlan& plan, int split, const Ring<kSlotBytes>& ring,
                            const TeamPosition& team, ResidentAttentionMemory& memory,
                            ResidentEntries& entries)
      : eps_(eps),
        layer_(layer),
        memory_(memory),
        entries_(entries),
        ring_(ring),
        team_(team),
        num_cached_(num_cached),
        kv_head_(split / plan.splits_per_head),
        first_key_(plan.first_key + split % plan.splits_per_head * plan.keys_per_split),
        end_key_(min(plan.end_key, first_key_ + plan.keys_per_split)),
        heads_(plan.heads) {}

  // Where the warp stands behind the slots of the split.
  __device__ const TeamPosition& team() const { return team_; }

  // `number`: of this phase, the raw heads are of the one before.
  __device__ __forceinline__ void Run(const ResidentPartials& partials, int split,
                                      uint32_t number) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int group = lane / 4;
    const int num_rounds = (end_key_ - first_key_ + kKeys - 1) / kKeys;
    FindRows(0, team_.Next(ring_.num_slots));
    MakeQueries(number);
    SyncWorkers();
    if (layer_.owns_kv && num_cached_ < end_key_) KeepEntry(number);

    float sums[kColumns][4] = {};
    float maximum[2] = {-INFINITY, -INFINITY};  // of heads group, group + 8
    float weight_sum[2] = {};
#pragma unroll 1
    for (int round = 0; round < num_rounds; ++round) {
      const int first = first_key_ + round * kKeys;
      const uint32_t(&rows)[kMaxSplitKeys] = entries_.rows[round % 2];
      RingPosition slots[kSlots];
#pragma unroll
      for (RingPosition& slot : slots) {
        slot = team_.Next(ring_.num_slots);
        AwaitBarrier(ring_.Arrived(slot), slot.parity);
        team_.Advance(ring_.num_slots);
      }
      if (round + 1 < num_rounds) FindRows(round + 1, team_.Next(ring_.num_slots));
      float scores[4] = {};
      AddScores(rows[LaneKey()], scores);
      constexpr float kLog2e = 1.4426950408889634f;
#pragma unroll
      for (int idx = 0; idx < 4; ++idx) {
        if (!HasHeads(idx / 2)) break;
        const int key = warp % kKeyGroups * 8 + lane % 4 * 2 + idx % 2;
        *Score(warp / kKeyGroups, group + idx / 2 * 8, key) =
            first + Runs().KeyOf(key) < end_key_ ? scores[idx] * kLog2e : -INFINITY;
      }
      SyncWorkers();
      AddValues(rows, maximum, weight_sum, sums);
      __syncwarp();
#pragma unroll
      for (const RingPosition& slot : slots) {
        if (lane == 0) ArriveAtBarrier(ring_.Consumed(slot));
      }
      if (round + 1 < num_rounds) SyncWorkers();  // The scores are not needed any more.
    }

#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int head = group + high * 8;
      if (head >= heads_) continue;
#pragma unroll
      for (int side = 0; side < 2; ++side) {
#pragma unroll
        for (int at = 0; at < kColumns; at += 4) {
          const int send = (high * 2 + side) * (kColumns / 4) + at / 4;
          const int which = 2 * high + side;
          SendFloats(
              PartialSums(partials, split, send, threadIdx.x),
              {sums[at][which], sums[at + 1][which], sums[at + 2][which], sums[at + 3][which]},
              number);
        }
      }
      if (warp == 0 && lane % 4 == 0) {
        SendFloats(partials.weights + (split * kSplitHeads + head),
                   {maximum[high], weight_sum[high], 0.0f, 0.0f}, number);
      }
    }
  }

 private:
  static constexpr int kEntryLen = kKeyOffset + kKeyLen;
  static constexpr bool kKeyIsValue = kKeyOffset < kValueLen;
  __device__ static constexpr EntryRuns Runs() { return EntryRuns(kSlotBytes, kEntryLen); }
  static constexpr int kSlots = EntryRuns(kSlotBytes, kEntryLen).num_slots(kKeys);  // of a round
  static_assert(kSlots <= kMinSlots);
  static constexpr int kKeyGroups = kKeys / 8;
  static constexpr int kDimParts = kResidentWarps / kKeyGroups;  // of a key, a warp each
  static constexpr int kPartLen = kKeyLen / kDimParts;
  static constexpr int kQueryPitch = ResidentQueryPitch(kKeyLen);
  // A lane holds so many neighbouring columns of V of each of its keys.
  static constexpr int kColumns = kValueLen / 8 / 8;
  static constexpr int kWords = kColumns / 2;
  static_assert(kColumns == 4 || kColumns == 8);
  static_assert(kDimParts * kSplitHeads * (kKeys + 8) * sizeof(float) <=
                sizeof(ResidentAttentionMemory::scores));
  using Row = HeadRow<kValueLen>;

  // Whether there are heads from 8 high on.
  __device__ bool HasHeads(int high) const { return high == 0 || heads_ > 8; }

  __device__ float* Score(int part, int head, int key) const {
    return memory_.scores + (part * kSplitHeads + head) * (kKeys + 8) + key;
  }

  // Where the keys of a round lie whose first slot is `at`, in place of those of the last but one.
  // The new token's entry is not in the cache yet; keys behind it count for nothing, but must be
  // numbers.
  __device__ void FindRows(int round, RingPosition at) {
    const int idx = threadIdx.x;
    if (idx >= kKeys) return;
    uint32_t row = SharedAddress(entries_.made);
    const int key = Runs().KeyOf(idx);
    if (first_key_ + round * kKeys + key < min(end_key_, num_cached_)) {
      int slot = at.slot + Runs().SlotOfKey(key);
      if (slot >= ring_.num_slots) slot -= ring_.num_slots;
      row = SharedAddress(ring_.slots) + slot * kSlotBytes + Runs().PlaceOfKey(key);
    }
    entries_.rows[round % 2][idx] = row;
  }

  // A warp has 8 keys, the lane one of them, and of every 32 of the warp's dims the lane has 8.
  __device__ static int LaneKey() {
    return static_cast<int>(threadIdx.x / 32) % kKeyGroups * 8 +
           static_cast<int>(threadIdx.x % 32) / 4;
  }
  __device__ static int LaneDim() {
    return static_cast<int>(threadIdx.x / 32) / kKeyGroups * kPartLen +
           static_cast<int>(threadIdx.x % 4) * 8;
  }

  __device__ void AddScores(uint32_t row, float (&scores)[4]) const {
    const uint32_t key = row + 2 * (kKeyOffset + LaneDim());
    const std::byte* low =
        memory_.queries() + static_cast<int>(threadIdx.x % 32) / 4 * kQueryPitch + 2 * LaneDim();
    float odd[4] = {};  // two chains of products
#pragma unroll
    for (int idx = 0; idx < kPartLen / 32; ++idx) {
      const uint4 low_query = *reinterpret_cast<const uint4*>(low + idx * 64);
      uint4 high_query = {};
      if (HasHeads(1)) {
        high_query = *reinterpret_cast<const uint4*>(low + 8 * kQueryPitch + idx * 64);
      }
      MmaChunk(idx % 2 == 0 ? scores : odd, low_query, high_query, LoadShared(key + idx * 64));
    }
#pragma unroll
    for (int idx = 0; idx < 4; ++idx) scores[idx] += odd[idx];
  }

  // The second operand of the products with P: of keys 16 j + {2t, 2t + 1, 2t + 8, 2t + 9}, t =
  // lane % 4, columns lane / 4 * kColumns on of the warp's.
  __device__ static int ValueKey(int chunk, int idx) {
    return chunk * 16 + idx / 2 * 8 + static_cast<int>(threadIdx.x % 4) * 2 + idx % 2;
  }
  __device__ static int ValueColumn() {
    return static_cast<int>(threadIdx.x / 32) * (kValueLen / 8) +
           static_cast<int>(threadIdx.x % 32 / 4) * kColumns;
  }

  __device__ static void LoadWords(uint32_t from, uint32_t (&to)[kWords]) {
    if constexpr (kWords == 4) {
      const uint4 words = LoadShared(from);
      to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
    } else {
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(to[0]), "=r"(to[1])
                   : "r"(from)
                   : "memory");
    }
  }

  // The raw heads of a warp, still packed.
  static constexpr int kQuads = Row::kPerLane / 4;
  static constexpr int kMaxWarpHeads = kSplitHeads / kResidentWarps + 1;

  // Receives the raw heads that this split needs: its queries, warp w has heads w and w + 8, and,
  // where the new token is among its keys, the new entry, of which the last warps have a half each.
  // If another layer has made that, it is received whole.
  __device__ void MakeQueries(uint32_t number) {
    const int warp = threadIdx.x / 32;
    const bool has_entry = num_cached_ < end_key_ && warp >= kResidentWarps - 2;
    const bool makes_key = has_entry && layer_.owns_kv && warp == kResidentWarps - 1;
    const bool makes_value = has_entry && layer_.owns_kv && !makes_key;
    if (has_entry && !layer_.owns_kv && warp == kResidentWarps - 1) ReceiveEntry(number);

    int heads[kMaxWarpHeads];  // among the raw ones; below 0: none
    heads[0] = warp < heads_ ? kv_head_ * heads_ + warp : -1;
    heads[1] = warp + 8 < heads_ ? kv_head_ * heads_ + warp + 8 : -1;
    heads[2] = makes_key ? layer_.num_heads + kv_head_
               : makes_value
                   ? layer_.num_heads + (layer_.k_is_v ? 0 : layer_.num_kv_heads) + kv_head_
                   : -1;
    uint2 raw[kMaxWarpHeads][kQuads] = {};
    ReceiveHeads(heads, number - 1, raw);

    // A loop that is not unrolled: code that is run once a layer comes slowly.
#pragma unroll 1
    for (int which = 0; which < kMaxWarpHeads; ++which) {
      Row row;
      const bool is_query = which < 2;
      if (which == 0 && heads[0] >= 0) {
        Unpack(raw[0], row);
      } else if (which == 1 && heads[1] >= 0) {
        Unpack(raw[1], row);
      } else if (which == 2 && heads[2] >= 0) {
        Unpack(raw[2], row);
      } else {
        continue;
      }
      row.Norm(eps_);
      bf16* to = is_query
                     ? reinterpret_cast<bf16*>(memory_.queries() + (warp + which * 8) * kQueryPitch)
                     : entries_.made;
      if (is_query || makes_key) {
        row.MultiplyPerDim(is_query ? entries_.q_norm : entries_.k_norm);
        row.Rotate(entries_.rope, layer_.rotary_pairs);
        if constexpr (kKeyIsValue) {
          if (is_query) {
            row.StoreSharedQuery(to, entries_.owner_k_norm, kKeyOffset / 2);
          } else {
            row.StoreSharedKey(to, kKeyOffset / 2);
          }
          continue;
        }
        if (!is_query) to += kValueLen;
      } else if constexpr (kKeyIsValue) {
        row.StoreSharedValue(to, kKeyOffset / 2);
        continue;
      }
      row.Store(to);
    }
  }

  __device__ void ReceiveHeads(const int (&heads)[kMaxWarpHeads], uint32_t number,
                               uint2 (&raw)[kMaxWarpHeads][kQuads]) const {
    AskUntilComplete([&] {
      bool complete = true;
#pragma unroll
      for (int which = 0; which < kMaxWarpHeads; ++which) {
        if (heads[which] < 0) continue;
        const uint64_t* from = layer_.raw + heads[which] * kValueLen / 2;
#pragma unroll
        for (int idx = 0; idx < kQuads; ++idx) {
          const uint4 words = LoadPackets(from + Row::Dim(4 * idx) / 2);
          complete = complete && words.y == number && words.w == number;
          raw[which][idx] = make_uint2(words.x, words.z);
        }
      }
      return complete;
    });
  }

  __device__ static void Unpack(const uint2 (&raw)[kQuads], Row& row) {
#pragma unroll
    for (int idx = 0; idx < kQuads; ++idx) {
      const float4 part = UnpackBf16x4(raw[idx]);
      row.values[4 * idx] = part.x;
      row.values[4 * idx + 1] = part.y;
      row.values[4 * idx + 2] = part.z;
      row.values[4 * idx + 3] = part.w;
    }
  }

  // One warp: the entry that the owner of this KV has made in its phase.
  __device__ void ReceiveEntry(uint32_t number) {
    constexpr int kEntryQuads = (kEntryLen / 4 + 31) / 32;
    const int lane = threadIdx.x % 32;
    uint2 quads[kEntryQuads] = {};
    ReceiveQuads<kEntryQuads>(KeptEntry(layer_, kv_head_, kEntryLen), lane, 32, kEntryLen / 4,
                              NumberOfOwner(layer_, number), quads);
#pragma unroll
    for (int idx = 0; idx < kEntryQuads; ++idx) {
      const int quad = lane + idx * 32;
      if (quad < kEntryLen / 4) reinterpret_cast<uint2*>(entries_.made)[quad] = quads[idx];
    }
  }

  // The new entry, for layers that read it and for its page.
  __device__ void KeepEntry(uint32_t number) const {
    uint64_t* kept = KeptEntry(layer_, kv_head_, kEntryLen);
    for (int quad = threadIdx.x; quad < kEntryLen / 4; quad += kResidentWorkers) {
      const uint2 values = reinterpret_cast<const uint2*>(entries_.made)[quad];
      SendPackets(kept + 2 * quad, values.x, values.y, number);
    }
  }

  __device__ void AddValues(const uint32_t (&rows)[kMaxSplitKeys], float (&maximum)[2],
                            float (&weight_sum)[2], float (&sums)[kColumns][4]) const {
    const int lane = threadIdx.x % 32;
    // As the first operand of the product: P of heads (group, group + 8), keys of ValueKey.
    uint32_t weights[kKeys / 16][4] = {};
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      if (!HasHeads(high)) break;
      float round_scores[kKeys / 16][4];
      float highest = maximum[high];
#pragma unroll
      for (int chunk = 0; chunk < kKeys / 16; ++chunk) {
#pragma unroll
        for (int idx = 0; idx < 4; ++idx) {
          const float* score = Score(0, lane / 4 + high * 8, ValueKey(chunk, idx));
          float sum = *score;
          if constexpr (kDimParts == 2) sum += score[kSplitHeads * (kKeys + 8)];
          round_scores[chunk][idx] = sum;
          highest = fmaxf(highest, sum);
        }
      }
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
      highest = AsSent(highest);  // P is relative to what the joining blocks will see.
      const float shrink = Exp2(maximum[high] - highest);
      maximum[high] = highest;
      float sum = 0.0f;
#pragma unroll
      for (int chunk = 0; chunk < kKeys / 16; ++chunk) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const uint32_t packed = PackBf16x2(Exp2(round_scores[chunk][2 * pair] - highest),
                                             Exp2(round_scores[chunk][2 * pair + 1] - highest));
          weights[chunk][2 * pair + high] = packed;
          sum += __uint_as_float(packed << 16) + __uint_as_float(packed & 0xffff0000u);
        }
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      weight_sum[high] = weight_sum[high] * shrink + sum;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        sums[column][2 * high] *= shrink;
        sums[column][2 * high + 1] *= shrink;
      }
    }
#pragma unroll
    for (int chunk = 0; chunk < kKeys / 16; ++chunk) {
      uint32_t keys[4][kWords];
#pragma unroll
      for (int idx = 0; idx < 4; ++idx) {
        LoadWords(rows[ValueKey(chunk, idx)] + 2 * ValueColumn(), keys[idx]);
      }
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        Mma(sums[2 * word], weights[chunk], __byte_perm(keys[0][word], keys[1][word], 0x5410),
            __byte_perm(keys[2][word], keys[3][word], 0x5410));
        Mma(sums[2 * word + 1], weights[chunk], __byte_perm(keys[0][word], keys[1][word], 0x7632),
            __byte_perm(keys[2][word], keys[3][word], 0x7632));
      }
    }
  }

  const float eps_;
  const ResidentAttention& layer_;
  ResidentAttentionMemory& memory_;
  ResidentEntries& entries_;
  const Ring<kSlotBytes> ring_;
  TeamPosition team_;
  const int num_cached_;
  const int kv_head_;
  const int first_key_;
  const int end_key_;
  const int heads_;
};

}  // namespace lapidary::cuda
