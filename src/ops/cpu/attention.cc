#include "ops/cpu/attention.h"

#include "ops/cpu/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;

// Scores of kHeads heads against every key of a segment: each key is loaded once for all of them.
template <int kHeads>
HWY_INLINE void ScoreSegment(const KeySegment& segment, const KvEntryPlan& entry, const float* q,
                             float* scores, int64_t num_keys) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t dim = entry.key_len;
  for (int64_t key_idx = 0; key_idx < segment.count; ++key_idx) {
    const float* key = segment.first + key_idx * segment.stride + entry.key_offset;
    FloatVec acc[kHeads];
    for (int head = 0; head < kHeads; ++head) acc[head] = hn::Zero(d);
    int64_t idx = 0;
    for (; idx + lanes <= dim; idx += lanes) {
      const FloatVec keys = hn::LoadU(d, key + idx);
      for (int head = 0; head < kHeads; ++head) {
        acc[head] = hn::MulAdd(keys, hn::LoadU(d, q + head * dim + idx), acc[head]);
      }
    }
    for (int head = 0; head < kHeads; ++head) {
      float score = hn::GetLane(hn::SumOfLanes(d, acc[head]));
      for (int64_t tail = idx; tail < dim; ++tail) score += key[tail] * q[head * dim + tail];
      scores[head * num_keys + key_idx] = score;
    }
  }
}

// out[head] += weights[head] * values for kHeads heads, in blocks of dims that fit the registers.
template <int kHeads>
HWY_INLINE void WeighValues(std::span<const KeySegment> segments, const KvEntryPlan& entry,
                            const float* weights, int64_t num_keys, float* out) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kVecs = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
  const int64_t dim = entry.value_len;
  int64_t idx = 0;
  for (; idx + kVecs * lanes <= dim; idx += kVecs * lanes) {
    FloatVec acc[kHeads][kVecs];
    for (int head = 0; head < kHeads; ++head) {
      for (int vec = 0; vec < kVecs; ++vec) acc[head][vec] = hn::Zero(d);
    }
    int64_t at = 0;
    for (const KeySegment& segment : segments) {
      for (int64_t key_idx = 0; key_idx < segment.count; ++key_idx, ++at) {
        const float* value = segment.first + key_idx * segment.stride + idx;
        FloatVec values[kVecs];
        for (int vec = 0; vec < kVecs; ++vec) values[vec] = hn::LoadU(d, value + vec * lanes);
        for (int head = 0; head < kHeads; ++head) {
          const FloatVec weight = hn::Set(d, weights[head * num_keys + at]);
          for (int vec = 0; vec < kVecs; ++vec) {
            acc[head][vec] = hn::MulAdd(weight, values[vec], acc[head][vec]);
          }
        }
      }
    }
    for (int head = 0; head < kHeads; ++head) {
      for (int vec = 0; vec < kVecs; ++vec) {
        hn::StoreU(acc[head][vec], d, out + head * dim + idx + vec * lanes);
      }
    }
  }
  for (; idx < dim; ++idx) {  // Head dims that are no multiple of the block.
    for (int head = 0; head < kHeads; ++head) {
      float sum = 0.0f;
      int64_t at = 0;
      for (const KeySegment& segment : segments) {
        for (int64_t key_idx = 0; key_idx < segment.count; ++key_idx, ++at) {
          sum += weights[head * num_keys + at] * segment.first[key_idx * segment.stride + idx];
        }
      }
      out[head * dim + idx] = sum;
    }
  }
}

template <int kHeads>
void AttendHeads(std::span<const KeySegment> segments, const KvEntryPlan& entry, const float* q,
                 int64_t num_keys, float* scores, float* out) {
  int64_t at = 0;
  for (const KeySegment& segment : segments) {
    ScoreSegment<kHeads>(segment, entry, q, scores + at, num_keys);
    at += segment.count;
  }
  float inverse_sum[kHeads];
  for (int head = 0; head < kHeads; ++head) {
    inverse_sum[head] = 1.0f / ExpMinusMax(scores + head * num_keys, num_keys);
  }
  WeighValues<kHeads>(segments, entry, scores, num_keys, out);
  for (int head = 0; head < kHeads; ++head) {
    Scale(out + head * entry.value_len, inverse_sum[head], entry.value_len,
          out + head * entry.value_len);
  }
}

void AttendAllHeads(std::span<const KeySegment> segments, const KvEntryPlan& entry, const float* q,
                    int num_heads, float* scores, float* out) {
  int64_t num_keys = 0;
  for (const KeySegment& segment : segments) num_keys += segment.count;
  int head = 0;
  for (; head + 4 <= num_heads; head += 4) {
    AttendHeads<4>(segments, entry, q + head * entry.key_len, num_keys, scores,
                   out + head * entry.value_len);
  }
  for (; head < num_heads; ++head) {
    AttendHeads<1>(segments, entry, q + head * entry.key_len, num_keys, scores,
                   out + head * entry.value_len);
  }
}

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(AttendAllHeads);

void AttendRow(std::span<const KeySegment> segments, const KvEntryPlan& entry, const float* q,
               int num_heads, float* scores, float* out) {
  HWY_DYNAMIC_DISPATCH(AttendAllHeads)(segments, entry, q, num_heads, scores, out);
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
