// Which tokens of a row can matter, found by a block of threads: candidates, and the cutoffs that
// top-k and top-p come to. Radix selects over order-preserving bits with integer sums, as on the
// CPU (sampling/select.h), so neither threads nor order show in a result.
#pragma once

#include <cstdint>

#include "ops/cuda/sampling/sampling_scratch.h"
#include "ops/cuda/vec.cuh"
#include "sampling/draw.h"

namespace lapidary::cuda {

inline constexpr int kDrawThreads = 512;
inline constexpr int kDrawWarps = kDrawThreads / kWarpSize;
inline constexpr int kDigits = 2048;
inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kLowestLogit = -3.402823466e38f;

__device__ inline uint32_t OrderedBits(float value) {
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
  return bits ^ (sign | 0x80000000u);
}

__device__ inline float FloatOfOrderedBits(uint32_t bits) {
  return __uint_as_float((bits & 0x80000000u) != 0 ? bits ^ 0x80000000u : ~bits);
}

struct SelectShared {
  unsigned long long sums[kDigits];
  unsigned long long warp_sums[kDrawWarps];
  unsigned long long target;
  uint32_t digit;
};

// Sum over the block; every thread gets it. Integers: no order.
__device__ inline unsigned long long BlockTotal(unsigned long long value, SelectShared& shared) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  __syncthreads();
  if (threadIdx.x % kWarpSize == 0) shared.warp_sums[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  unsigned long long total = 0;
  for (int warp = 0; warp < kDrawWarps; ++warp) total += shared.warp_sums[warp];
  return total;
}

// The largest digit at which the sum of `shared.sums` from the top reaches the target; what lies
// above is taken from the target. All threads call it; the sums must reach the target.
__device__ inline void FindDigit(SelectShared& shared) {
  constexpr int kPerThread = kDigits / kDrawThreads;
  const int top = kDigits - 1 - static_cast<int>(threadIdx.x) * kPerThread;
  __syncthreads();
  unsigned long long own = 0;
  for (int idx = 0; idx < kPerThread; ++idx) own += shared.sums[top - idx];
  // Exclusive prefix over the threads.
  unsigned long long prefix = own;
  const int lane = threadIdx.x % kWarpSize;
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const unsigned long long other = __shfl_up_sync(0xffffffffu, prefix, offset);
    if (lane >= offset) prefix += other;
  }
  if (lane == kWarpSize - 1) shared.warp_sums[threadIdx.x / kWarpSize] = prefix;
  __syncthreads();
  const unsigned long long target = shared.target;
  unsigned long long before = prefix - own;
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / kWarpSize; ++warp) {
    before += shared.warp_sums[warp];
  }
  __syncthreads();
  if (before < target && target <= before + own) {
    unsigned long long sum = before;
    for (int idx = 0; idx < kPerThread; ++idx) {
      const unsigned long long digit_sum = shared.sums[top - idx];
      if (sum + digit_sum >= target) {
        shared.digit = static_cast<uint32_t>(top - idx);
        shared.target = target - sum;
        break;
      }
      sum += digit_sum;
    }
  }
  __syncthreads();
}

// The value of the key at which the running sum of measure over keys in descending order reaches
// the target; shared.target is left as the rest to be found among equal keys. for_each(f) calls
// f(key, measure) for every candidate, over the threads of the block.
template <int kKeyBits, typename ForEach>
__device__ uint32_t RadixSelect(SelectShared& shared, unsigned long long target,
                                const ForEach& for_each) {
  constexpr int kDigitBits = 11;
  if (threadIdx.x == 0) shared.target = target;
  uint32_t prefix = 0;
  for (int done = 0; done < kKeyBits; done += kDigitBits) {
    const int bits = min(kDigitBits, kKeyBits - done);
    const int shift = kKeyBits - done - bits;
    for (int idx = threadIdx.x; idx < kDigits; idx += kDrawThreads) shared.sums[idx] = 0;
    __syncthreads();
    for_each([&](uint32_t key, unsigned long long measure) {
      if (done > 0 && (key >> (shift + bits)) != prefix) return;
      atomicAdd(&shared.sums[(key >> shift) & ((1u << bits) - 1)], measure);
    });
    FindDigit(shared);
    prefix = (prefix << bits) | shared.digit;
    __syncthreads();
  }
  return prefix;
}

// A row as its draw sees it: -inf where a token may not come.
struct LogitRow {
  const float* logits;
  const uint32_t* mask;  // null: any may

  __device__ float operator[](int id) const {
    return mask == nullptr || (mask[id / 32] >> (id % 32) & 1) != 0 ? logits[id] : -kInfinity;
  }
};

// body(first id, four logits) for all ids of a row, over the threads of the block; -inf behind its
// end. Several are asked for at once.
template <typename Body>
__device__ inline void ForEachFour(const LogitRow& row, int vocab_size, const Body& body) {
  constexpr int kAtOnce = 4;
  const int num_fours = (vocab_size + 3) / 4;
  const bool is_aligned = vocab_size % 4 == 0;  // rows begin at multiples of 16 bytes
  for (int first = threadIdx.x; first < num_fours; first += kAtOnce * kDrawThreads) {
    float logits[kAtOnce][4];
#pragma unroll
    for (int idx = 0; idx < kAtOnce; ++idx) {
      const int id = 4 * (first + idx * kDrawThreads);
      if (is_aligned && row.mask == nullptr && id < vocab_size) {
        const float4 four = *reinterpret_cast<const float4*>(row.logits + id);
        logits[idx][0] = four.x;
        logits[idx][1] = four.y;
        logits[idx][2] = four.z;
        logits[idx][3] = four.w;
      } else {
#pragma unroll
        for (int at = 0; at < 4; ++at) {
          logits[idx][at] = id + at < vocab_size ? row[id + at] : -kInfinity;
        }
      }
    }
#pragma unroll
    for (int idx = 0; idx < kAtOnce; ++idx) {
      const int id = 4 * (first + idx * kDrawThreads);
      if (id < vocab_size) body(id, logits[idx]);
    }
  }
}

// Candidates of a row: logits >= bound, as a list where they are few, otherwise found again.
struct Candidates {
  LogitRow row;
  const float* maxima;
  int vocab_size;
  float bound;
  const int32_t* list;
  int count;  // -1: no list

  // body(logit, id) for every candidate, over the threads of the block.
  template <typename Body>
  __device__ void ForEach(const Body& body) const {
    if (count >= 0) {
      for (int idx = threadIdx.x; idx < count; idx += kDrawThreads) body(row[list[idx]], list[idx]);
      return;
    }
    // A warp per block of 64: two logits a lane.
    const int num_blocks = NumRowBlocks(vocab_size);
    for (int block = threadIdx.x / kWarpSize; block < num_blocks; block += kDrawWarps) {
      if (maxima[block] < bound) continue;
      for (int part = 0; part < 2; ++part) {
        const int id = block * kRowBlock + part * kWarpSize + threadIdx.x % kWarpSize;
        if (id < vocab_size && row[id] >= bound) body(row[id], id);
      }
    }
  }
};

// The mass of a whole row; every thread gets it.
__device__ inline unsigned long long RowMass(const LogitRow& row, int vocab_size, float max,
                                             float inv_temperature, SelectShared& shared) {
  unsigned long long own = 0;
  ForEachFour(row, vocab_size, [&](int, const float(&logits)[4]) {
#pragma unroll
    for (const float logit : logits) own += TokenMass(TokenWeight(logit, max, inv_temperature));
  });
  return BlockTotal(own, shared);
}

// The mass at which a nucleus of `top_p` of `total` ends.
__device__ inline unsigned long long NucleusTarget(float top_p, unsigned long long total) {
  const double share = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const auto target = static_cast<unsigned long long>(share);
  return min(max(target, 1ull), total);
}

struct DrawShared {
  SelectShared select;
  int list_count;
  float scores[kDrawWarps];
  int32_t ids[kDrawWarps];
  float maxima_max[kDrawWarps];
  unsigned long long counter;
};

__device__ inline void Collect(Candidates& candidates, int32_t* list, DrawShared& shared) {
  candidates.count = -1;
  __syncthreads();
  if (threadIdx.x == 0) shared.list_count = 0;
  __syncthreads();
  candidates.ForEach([&](float, int32_t id) {
    const int at = atomicAdd(&shared.list_count, 1);
    if (at < kMaxListed) list[at] = id;
  });
  __syncthreads();
  if (shared.list_count <= kMaxListed) {
    candidates.list = list;
    candidates.count = shared.list_count;
  }
  __syncthreads();
}

constexpr int kIdBits = 22;
inline constexpr uint32_t kIdMask = (1u << kIdBits) - 1;

// The cutoff at which measure, summed from the best candidate down, reaches the target.
template <typename Measure>
__device__ Cutoff SelectCutoff(const Candidates& candidates, unsigned long long target,
                               const Measure& measure, DrawShared& shared) {
  const uint32_t bits = RadixSelect<32>(shared.select, target, [&](const auto& add) {
    candidates.ForEach([&](float x, int32_t id) {
      const unsigned long long value = measure(x, id);
      if (value != 0) add(OrderedBits(x), value);
    });
  });
  const unsigned long long rest = shared.select.target;
  __syncthreads();
  // Equal logits: the lower ids come first.
  const uint32_t key = RadixSelect<kIdBits>(shared.select, rest, [&](const auto& add) {
    candidates.ForEach([&](float x, int32_t id) {
      if (OrderedBits(x) != bits) return;
      const unsigned long long value = measure(x, id);
      if (value != 0) add(kIdMask - static_cast<uint32_t>(id), value);
    });
  });
  Cutoff cutoff;
  cutoff.id = static_cast<int32_t>(kIdMask - key);
  cutoff.logit = candidates.row[cutoff.id];
  return cutoff;
}

// Every candidate that can be among the best k: the k-th largest block maximum is a lower bound.
// There may be fewer than k, where most tokens may not come.
__device__ inline void CollectTop(Candidates& candidates, int k, int32_t* list,
                                  DrawShared& shared) {
  const int num_blocks = NumRowBlocks(candidates.vocab_size);
  candidates.bound = -kInfinity;
  if (k <= num_blocks) {
    const float* maxima = candidates.maxima;
    const uint32_t bits = RadixSelect<32>(shared.select, k, [&](const auto& add) {
      for (int block = threadIdx.x; block < num_blocks; block += kDrawThreads) {
        add(OrderedBits(maxima[block]), 1ull);
      }
    });
    // Of masked rows, most blocks may be -inf throughout.
    candidates.bound = fmaxf(FloatOfOrderedBits(bits), kLowestLogit);
  }
  Collect(candidates, list, shared);
}

__device__ inline float BlockMax(float best, DrawShared& shared) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
  }
  __syncthreads();
  if (threadIdx.x % kWarpSize == 0) shared.maxima_max[threadIdx.x / kWarpSize] = best;
  __syncthreads();
  for (int warp = 0; warp < kDrawWarps; ++warp) best = fmaxf(best, shared.maxima_max[warp]);
  return best;
}

__device__ inline float RowMax(const float* maxima, int num_blocks, DrawShared& shared) {
  float best = -kInfinity;
  for (int block = threadIdx.x; block < num_blocks; block += kDrawThreads) {
    best = fmaxf(best, maxima[block]);
  }
  return BlockMax(best, shared);
}

// +inf where one of the values is NaN.
__device__ inline float ListMax(const LogitRow& row, const int32_t* list, int count,
                                DrawShared& shared) {
  float best = -kInfinity;
  for (int idx = threadIdx.x; idx < count; idx += kDrawThreads) {
    const float value = row[list[idx]];
    best = fmaxf(best, isnan(value) ? kInfinity : value);
  }
  return BlockMax(best, shared);
}

}  // namespace lapidary::cuda
