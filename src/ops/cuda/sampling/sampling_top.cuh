// The best tokens of a row in their order, where they are few: in shared memory, so that filters
// are positions in a list and a draw looks at nothing else. And the end of a nucleus of any size.
#pragma once

#include "ops/cuda/sampling/sampling_select.cuh"

namespace lapidary::cuda {

inline constexpr int kMaxTop = 2 * kDrawThreads;  // tokens; a thread has two neighbours
inline constexpr int kMaxTopBlocks = 4096;        // that they may lie in: all of Gemma's vocabulary
inline constexpr int kHeldMaxima = kMaxTopBlocks / kDrawThreads;

// A token as a number: by logit, the lower id first among equals.
__device__ inline unsigned long long TopKey(float logit, int32_t id) {
  return static_cast<unsigned long long>(OrderedBits(logit)) << 32 |
         (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ inline float TopLogit(unsigned long long key) {
  return FloatOfOrderedBits(static_cast<uint32_t>(key >> 32));
}
__device__ inline int32_t TopId(unsigned long long key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

struct TopShared {
  unsigned long long keys[kMaxTop];
  uint16_t blocks[kMaxTopBlocks];
  int counts[2][kDrawWarps];
  int num_blocks;
  int num_keys;
  int found;
  unsigned long long rest;
};

// Sum over the block. Calls one behind the other take turns with `turn`, and then need no barrier
// between them.
__device__ inline int BlockCount(int own, int turn, TopShared& shared) {
  const int lane = threadIdx.x % kWarpSize;
  const int sum = __reduce_add_sync(0xffffffffu, own);
  if (lane == 0) shared.counts[turn % 2][threadIdx.x / kWarpSize] = sum;
  __syncthreads();
  return __reduce_add_sync(0xffffffffu, lane < kDrawWarps ? shared.counts[turn % 2][lane] : 0);
}

// A bound that at least the best k tokens reach, since as many block maxima do; few more than that,
// unless many are equal. The lowest finite number where not so many blocks have a token.
__device__ inline float BoundOfTop(const float* maxima, int num_blocks, float max, int k,
                                   TopShared& shared) {
  uint32_t keys[kHeldMaxima];
#pragma unroll
  for (int idx = 0; idx < kHeldMaxima; ++idx) {
    const int block = idx * kDrawThreads + static_cast<int>(threadIdx.x);
    keys[idx] = block < num_blocks ? OrderedBits(maxima[block]) : 0;
  }
  uint32_t low = OrderedBits(kLowestLogit);  // reached by k of them
  uint32_t high = OrderedBits(max) + 1;      // by fewer
  for (int turn = 0; high - low > 1; ++turn) {
    const uint32_t middle = low + (high - low) / 2;
    int own = 0;
#pragma unroll
    for (const uint32_t key : keys) own += key >= middle;
    const int count = BlockCount(own, turn, shared);
    if (count < k) {
      high = middle;
      continue;
    }
    low = middle;
    if (count <= k + k / 2) break;
  }
  return FloatOfOrderedBits(low);
}

// body(logit, id) for all tokens of blocks whose maximum `takes_block`, over the threads of the
// block; num_blocks at most kMaxTopBlocks.
template <typename TakesBlock, typename Body>
__device__ inline void ForEachInBlocks(const LogitRow& row, const float* maxima, int vocab_size,
                                       const TakesBlock& takes_block, TopShared& shared,
                                       const Body& body) {
  const int thread = static_cast<int>(threadIdx.x);
  const int num_blocks = NumRowBlocks(vocab_size);
  __syncthreads();
  if (thread == 0) shared.num_blocks = 0;
  __syncthreads();
  for (int block = thread; block < num_blocks; block += kDrawThreads) {
    if (takes_block(maxima[block])) {
      shared.blocks[atomicAdd(&shared.num_blocks, 1)] = static_cast<uint16_t>(block);
    }
  }
  __syncthreads();
  const int num_tokens = shared.num_blocks * kRowBlock;
  constexpr int kAtOnce = 8;  // on their way from memory
  for (int first = thread; first < num_tokens; first += kAtOnce * kDrawThreads) {
    float logits[kAtOnce];
    int ids[kAtOnce];
#pragma unroll
    for (int idx = 0; idx < kAtOnce; ++idx) {
      const int at = first + idx * kDrawThreads;
      ids[idx] =
          at < num_tokens ? shared.blocks[at / kRowBlock] * kRowBlock + at % kRowBlock : vocab_size;
      logits[idx] = ids[idx] < vocab_size ? row[ids[idx]] : -kInfinity;
    }
#pragma unroll
    for (int idx = 0; idx < kAtOnce; ++idx) {
      if (ids[idx] < vocab_size) body(logits[idx], ids[idx]);
    }
  }
}

// Those of them that `takes` as keys, in their order: a key's place is the number of better ones.
// False: there are too many.
template <typename TakesBlock, typename Takes>
__device__ inline bool SortTokens(const LogitRow& row, const float* maxima, int vocab_size,
                                  const TakesBlock& takes_block, const Takes& takes,
                                  TopShared& shared) {
  if (threadIdx.x == 0) shared.num_keys = 0;
  ForEachInBlocks(row, maxima, vocab_size, takes_block, shared, [&](float logit, int32_t id) {
    if (!takes(logit)) return;
    const int at = atomicAdd(&shared.num_keys, 1);
    if (at < kMaxTop) shared.keys[at] = TopKey(logit, id);
  });
  __syncthreads();
  const int count = shared.num_keys;
  if (count > kMaxTop) return false;
  unsigned long long own[2];
  int ranks[2] = {0, 0};
#pragma unroll
  for (int idx = 0; idx < 2; ++idx) {
    const int at = static_cast<int>(threadIdx.x) + idx * kDrawThreads;
    own[idx] = at < count ? shared.keys[at] : 0;
  }
  if (count <= kDrawThreads) {
#pragma unroll 8
    for (int at = 0; at < count; ++at) ranks[0] += shared.keys[at] > own[0];
  } else {
#pragma unroll 8
    for (int at = 0; at < count; ++at) {
      const unsigned long long key = shared.keys[at];
      ranks[0] += key > own[0];
      ranks[1] += key > own[1];
    }
  }
  __syncthreads();
#pragma unroll
  for (int idx = 0; idx < 2; ++idx) {
    if (own[idx] != 0) shared.keys[ranks[idx]] = own[idx];
  }
  __syncthreads();
  return true;
}

// At least the best k tokens of a row in their order (all that may come, where those are fewer),
// shared.num_keys of them. False: they are not few enough.
__device__ inline bool FindTop(const LogitRow& row, const float* maxima, int vocab_size, float max,
                               int k, TopShared& shared) {
  const int num_blocks = NumRowBlocks(vocab_size);
  if (k > num_blocks || k > kMaxTop / 2 || num_blocks > kMaxTopBlocks) return false;
  const float bound = BoundOfTop(maxima, num_blocks, max, k, shared);
  const auto reaches = [&](float logit) { return logit >= bound; };
  return SortTokens(row, maxima, vocab_size, reaches, reaches, shared);
}

// The sum over the threads before this one, and over all.
struct MassBefore {
  unsigned long long own;
  unsigned long long all;

  __device__ MassBefore(unsigned long long value, SelectShared& shared) : own(value), all(0) {
    const int lane = threadIdx.x % kWarpSize;
    const int warp = threadIdx.x / kWarpSize;
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const unsigned long long other = __shfl_up_sync(0xffffffffu, own, offset);
      if (lane >= offset) own += other;
    }
    __syncthreads();
    if (lane == kWarpSize - 1) shared.warp_sums[warp] = own;
    __syncthreads();
    own -= value;
#pragma unroll
    for (int idx = 0; idx < kDrawWarps; ++idx) {
      if (idx < warp) own += shared.warp_sums[idx];
      all += shared.warp_sums[idx];
    }
  }
};

// Which of pairs of masses, a pair to a thread, brings the sum to the target: shared.found, with
// shared.rest the part of the target that is left to it. It must be reached.
__device__ inline void FindMass(unsigned long long before, unsigned long long first,
                                unsigned long long second, unsigned long long target,
                                TopShared& shared) {
  const int at = 2 * static_cast<int>(threadIdx.x);
  if (before < target && target <= before + first) {
    shared.found = at;
    shared.rest = target - before;
  } else if (before + first < target && target <= before + first + second) {
    shared.found = at + 1;
    shared.rest = target - before - first;
  }
  __syncthreads();
}

// How many of the first `count` keys it takes until their mass, mass(logit) each, reaches
// target_of(the mass of all).
template <typename Mass, typename Target>
__device__ int NumUntilMass(int count, const Mass& mass, const Target& target_of, TopShared& shared,
                            SelectShared& sums) {
  unsigned long long own[2];
#pragma unroll
  for (int idx = 0; idx < 2; ++idx) {
    const int at = 2 * static_cast<int>(threadIdx.x) + idx;
    own[idx] = at < count ? mass(TopLogit(shared.keys[at])) : 0;
  }
  const MassBefore before(own[0] + own[1], sums);
  FindMass(before.own, own[0], own[1], target_of(before.all), shared);
  return shared.found + 1;
}

// A row's masses by weight, in buckets of a fortieth of an e-fold. The sums of three parts of a
// mass, which fit 32 bits each whatever the row, since 64-bit sums in shared memory are slow.
struct MassBuckets {
  static constexpr int kBuckets = 2 * kDrawThreads;
  static constexpr int kParts = 3;
  static constexpr int kPartBits = 14;  // times 2^18 tokens
  static_assert(kParts * kBuckets * sizeof(uint32_t) <= sizeof(SelectShared::sums));
  uint32_t* sums;  // [kParts][kBuckets]

  // The same or a higher one for a larger logit; the last holds what is as heavy as the heaviest.
  __device__ static int BucketOf(float logit, float max, float inv_temperature) {
    const float exponent = draw::Mul(draw::Add(logit, -max), inv_temperature);
    const float place = draw::Mul(draw::Add(exponent, -draw::kMasslessExponent), 40.0f);
    return min(max_bucket(), static_cast<int>(fmaxf(place, 0.0f)));
  }
  __device__ static constexpr int max_bucket() { return kBuckets - 1; }

  __device__ void Clear() const {
    for (int at = threadIdx.x; at < kParts * kBuckets; at += kDrawThreads) sums[at] = 0;
  }
  __device__ void Add(int bucket, unsigned long long mass) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const auto bits = static_cast<uint32_t>(mass >> (part * kPartBits)) & ((1u << kPartBits) - 1);
      if (bits != 0) atomicAdd(&sums[part * kBuckets + bucket], bits);
    }
  }
  __device__ unsigned long long Mass(int bucket) const {
    unsigned long long mass = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      mass += static_cast<unsigned long long>(sums[part * kBuckets + bucket]) << (part * kPartBits);
    }
    return mass;
  }
};

// Where the nucleus of a whole row ends. False: too many tokens weigh as much as the last one, or
// the vocabulary is too large.
__device__ inline bool CutNucleus(const LogitRow& row, const float* maxima, int vocab_size,
                                  float max, float inv_temperature, float top_p,
                                  SelectShared& select, TopShared& shared, Cutoff& cutoff) {
  if (NumRowBlocks(vocab_size) > kMaxTopBlocks) return false;
  const MassBuckets buckets{reinterpret_cast<uint32_t*>(select.sums)};
  const auto mass_of = [&](float logit) -> unsigned long long {
    return TokenMass(TokenWeight(logit, max, inv_temperature));
  };
  const auto bucket_of = [&](float logit) {
    return MassBuckets::BucketOf(logit, max, inv_temperature);
  };
  __syncthreads();
  buckets.Clear();
  __syncthreads();
  ForEachFour(row, vocab_size, [&](int, const float(&logits)[4]) {
#pragma unroll
    for (const float logit : logits) {
      const unsigned long long mass = mass_of(logit);
      if (mass != 0) buckets.Add(bucket_of(logit), mass);
    }
  });
  __syncthreads();
  const int top = MassBuckets::max_bucket() - 2 * static_cast<int>(threadIdx.x);
  const unsigned long long own[2] = {buckets.Mass(top), buckets.Mass(top - 1)};
  const MassBefore before(own[0] + own[1], select);
  FindMass(before.own, own[0], own[1], NucleusTarget(top_p, before.all), shared);
  const int bucket = MassBuckets::max_bucket() - shared.found;
  const unsigned long long rest = shared.rest;
  if (!SortTokens(
          row, maxima, vocab_size, [&](float most) { return bucket_of(most) >= bucket; },
          [&](float logit) { return bucket_of(logit) == bucket && mass_of(logit) != 0; }, shared)) {
    return false;
  }
  const int count = NumUntilMass(
      shared.num_keys, mass_of, [&](unsigned long long) { return rest; }, shared, select);
  cutoff = {TopLogit(shared.keys[count - 1]), TopId(shared.keys[count - 1])};
  return true;
}

}  // namespace lapidary::cuda
