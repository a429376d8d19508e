#include "ops/cpu/attention.h"

#include "ops/cpu/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/sum_lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;

// Scores of kHeads heads against kKeys keys, `stride` floats apart. While they are computed the
// entries from `ahead` on, equally far apart, are fetched; null: none.
template <int kHeads, int kKeys>
HWY_INLINE void ScoreKeys(const float* HWY_RESTRICT keys, int64_t stride, const KvEntryPlan& entry,
                          const float* HWY_RESTRICT q, const float* ahead,
                          float* HWY_RESTRICT scores, int64_t num_keys) {
  static_assert(kHeads % 4 == 0 || kHeads == 1);
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t dim = entry.key_len;
  FloatVec acc[kHeads][kKeys];
  HWY_UNROLL(4)
  for (int head = 0; head < kHeads; ++head) {
    HWY_UNROLL(4)
    for (int key = 0; key < kKeys; ++key) acc[head][key] = hn::Zero(d);
  }
  int64_t idx = 0;
  for (; idx + lanes <= dim; idx += lanes) {
    FloatVec key_vecs[kKeys];
    HWY_UNROLL(4)
    for (int key = 0; key < kKeys; ++key) key_vecs[key] = hn::LoadU(d, keys + key * stride + idx);
    if (ahead != nullptr) {
      // An entry is its key and, if that is not its key too, its value.
      HWY_UNROLL(4)
      for (int key = 0; key < kKeys; ++key) {
        __builtin_prefetch(ahead + key * stride + idx, 0, 2);
        __builtin_prefetch(ahead + key * stride + entry.entry_len - dim + idx, 0, 2);
      }
    }
    HWY_UNROLL(4)
    for (int head = 0; head < kHeads; ++head) {
      const FloatVec query = hn::LoadU(d, q + head * dim + idx);
      HWY_UNROLL(4)
      for (int key = 0; key < kKeys; ++key) {
        acc[head][key] = hn::MulAdd(key_vecs[key], query, acc[head][key]);
      }
    }
  }
  float sums[4];
  const auto store = [&](int head, int key, float score) {
    for (int64_t tail = idx; tail < dim; ++tail) {
      score += keys[key * stride + tail] * q[head * dim + tail];
    }
    scores[head * num_keys + key] = score;
  };
  HWY_UNROLL(4)
  for (int key = 0; key < kKeys; ++key) {
    if constexpr (kHeads == 1) {
      store(0, key, SumLanes(d, acc[0][key]));
    } else {
      HWY_UNROLL(4)
      for (int head = 0; head < kHeads; head += 4) {
        SumLanesOfFour(d, acc[head][key], acc[head + 1][key], acc[head + 2][key],
                       acc[head + 3][key], sums);
        for (int lane = 0; lane < 4; ++lane) store(head + lane, key, sums[lane]);
      }
    }
  }
}

// Scores of kHeads heads against every key of a segment: each key is loaded once for all of them.
template <int kHeads>
HWY_INLINE void ScoreSegment(const KeySegment& segment, const KvEntryPlan& entry, const float* q,
                             bool fetch, float* scores, int64_t num_keys) {
  constexpr int kKeys = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
  const float* keys = segment.floats() + entry.key_offset;
  int64_t key_idx = 0;
  for (; key_idx + kKeys <= segment.count; key_idx += kKeys) {
    const bool has_next = key_idx + 2 * kKeys <= segment.count;
    const float* ahead = segment.floats() + (key_idx + kKeys) * segment.stride;
    ScoreKeys<kHeads, kKeys>(keys + key_idx * segment.stride, segment.stride, entry, q,
                             fetch && has_next ? ahead : nullptr, scores + key_idx, num_keys);
  }
  for (; key_idx < segment.count; ++key_idx) {
    ScoreKeys<kHeads, 1>(keys + key_idx * segment.stride, segment.stride, entry, q, nullptr,
                         scores + key_idx, num_keys);
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
    HWY_UNROLL(4)
    for (int head = 0; head < kHeads; ++head) {
      HWY_UNROLL(4)
      for (int vec = 0; vec < kVecs; ++vec) acc[head][vec] = hn::Zero(d);
    }
    int64_t at = 0;
    for (const KeySegment& segment : segments) {
      for (int64_t key_idx = 0; key_idx < segment.count; ++key_idx, ++at) {
        const float* value = segment.floats() + key_idx * segment.stride + idx;
        FloatVec values[kVecs];
        HWY_UNROLL(4)
        for (int vec = 0; vec < kVecs; ++vec) values[vec] = hn::LoadU(d, value + vec * lanes);
        HWY_UNROLL(4)
        for (int head = 0; head < kHeads; ++head) {
          const FloatVec weight = hn::Set(d, weights[head * num_keys + at]);
          HWY_UNROLL(4)
          for (int vec = 0; vec < kVecs; ++vec) {
            acc[head][vec] = hn::MulAdd(weight, values[vec], acc[head][vec]);
          }
        }
      }
    }
    HWY_UNROLL(4)
    for (int head = 0; head < kHeads; ++head) {
      HWY_UNROLL(4)
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
          sum += weights[head * num_keys + at] * segment.floats()[key_idx * segment.stride + idx];
        }
      }
      out[head * dim + idx] = sum;
    }
  }
}

// `fetch`: the entries were not read for this row before.
template <int kHeads>
void AttendHeads(std::span<const KeySegment> segments, const KvEntryPlan& entry, const float* q,
                 bool fetch, int64_t num_keys, float* scores, float* out) {
  int64_t at = 0;
  for (const KeySegment& segment : segments) {
    ScoreSegment<kHeads>(segment, entry, q, fetch, scores + at, num_keys);
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
                    int num_heads, int64_t num_keys, float* scores, float* out) {
  int head = 0;
  for (; head + 4 <= num_heads; head += 4) {
    AttendHeads<4>(segments, entry, q + head * entry.key_len, head == 0, num_keys, scores,
                   out + head * entry.value_len);
  }
  for (; head < num_heads; ++head) {
    AttendHeads<1>(segments, entry, q + head * entry.key_len, head == 0, num_keys, scores,
                   out + head * entry.value_len);
  }
}

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(AttendAllHeads);

void AttendRow(std::span<const KeySegment> segments, const KvEntryPlan& entry, const float* q,
               int num_heads, AttentionScratch& scratch, float* out, KvFormat format) {
  int64_t num_keys = 0;
  for (const KeySegment& segment : segments) num_keys += segment.count;
  if (format != KvFormat::kF32) {
    const AttentionRow row{.q = q, .out = out, .begin = 0, .end = num_keys};
    return AttendRows(segments, entry, num_heads, {&row, 1}, scratch, format);
  }
  const size_t num_scores = static_cast<size_t>(4 * num_keys);  // of four heads at once
  if (scratch.scores.size() < num_scores) scratch.scores.resize(num_scores);
  HWY_DYNAMIC_DISPATCH(AttendAllHeads)
  (segments, entry, q, num_heads, num_keys, scratch.scores.data(), out);
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
