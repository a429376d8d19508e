#include "ops/cpu/rope.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cpu/elementwise.h"

namespace lapidary::cpu {
namespace {

constexpr int kMaxHeadDim = 4096;  // config.cc refuses more

// The rotary dims [0, R), [d/2, d/2 + R) and the others of a head, in this order.
struct HeadParts {
  const float* low;
  const float* high;
  int pairs;
  int half;

  float* CopyRotary(float* to) const {
    return std::copy_n(high, pairs, std::copy_n(low, pairs, to));
  }
  float* CopyRest(float* to) const {
    return std::copy_n(high + pairs, half - pairs, std::copy_n(low + pairs, half - pairs, to));
  }
};

HeadParts PartsOf(RotaryHead rotary, const float* head) {
  const int half = rotary.head_dim / 2;
  return {.low = head, .high = head + half, .pairs = rotary.num_rotary_pairs, .half = half};
}

}  // namespace

void RopeTable::Fill(std::span<const float> frequencies, std::span<const int32_t> positions) {
  num_rotary_pairs = static_cast<int>(frequencies.size());
  cos.resize(positions.size() * num_rotary_pairs);
  sin.resize(positions.size() * num_rotary_pairs);
  for (size_t row = 0; row < positions.size(); ++row) {
    for (int pair_idx = 0; pair_idx < num_rotary_pairs; ++pair_idx) {
      const float angle = static_cast<float>(positions[row]) * frequencies[pair_idx];
      const size_t at = row * num_rotary_pairs + pair_idx;
      cos[at] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin[at] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
}

void ApplyRope(RotaryHead rotary, const float* cos, const float* sin, float* head) {
  float* low = head;
  float* high = head + rotary.head_dim / 2;
  for (int pair_idx = 0; pair_idx < rotary.num_rotary_pairs; ++pair_idx) {
    const float x = low[pair_idx];
    const float y = high[pair_idx];
    low[pair_idx] = x * cos[pair_idx] - y * sin[pair_idx];
    high[pair_idx] = y * cos[pair_idx] + x * sin[pair_idx];
  }
}

void MakeCachedQuery(RotaryHead rotary, const KvEntryPlan& form, const float* raw,
                     const float* q_norm, const float* k_norm, float eps, const float* cos,
                     const float* sin, float* query) {
  const int dim = rotary.head_dim;
  if (!form.k_is_v()) {
    RmsNorm(raw, q_norm, eps, dim, query);
    ApplyRope(rotary, cos, sin, query);
    return;
  }
  CHECK_LE(dim, kMaxHeadDim);
  float head[kMaxHeadDim];
  RmsNorm(raw, q_norm, eps, dim, head);
  ApplyRope(rotary, cos, sin, head);
  float* const rotary_part = PartsOf(rotary, head).CopyRest(query);
  float norm[kMaxHeadDim];
  PartsOf(rotary, k_norm).CopyRest(norm);
  for (float* value = query; value < rotary_part; ++value) *value *= norm[value - query];
  PartsOf(rotary, head).CopyRotary(rotary_part);
}

void MakeKvEntry(RotaryHead rotary, const KvEntryPlan& form, const float* k_raw, const float* v_raw,
                 const float* k_norm, float eps, const float* cos, const float* sin, float* entry) {
  const int dim = rotary.head_dim;
  if (!form.k_is_v()) {
    RmsNorm(v_raw, nullptr, eps, dim, entry);
    RmsNorm(k_raw, k_norm, eps, dim, entry + dim);
    ApplyRope(rotary, cos, sin, entry + dim);
    return;
  }
  CHECK_LE(dim, kMaxHeadDim);
  float head[kMaxHeadDim];
  RmsNorm(v_raw, nullptr, eps, dim, head);
  PartsOf(rotary, head).CopyRest(PartsOf(rotary, head).CopyRotary(entry));
  RmsNorm(k_raw, k_norm, eps, dim, head);
  ApplyRope(rotary, cos, sin, head);
  PartsOf(rotary, head).CopyRotary(entry + dim);
}

void RestoreValueOrder(const KvEntryPlan& form, int num_heads, float* values) {
  if (!form.k_is_v()) return;
  const int dim = form.value_len;
  CHECK_LE(dim, kMaxHeadDim);
  float columns[kMaxHeadDim];
  for (float* head = values; head < values + int64_t{num_heads} * dim; head += dim) {
    std::copy_n(head, dim, columns);
    for (int column = 0; column < dim; ++column) {
      head[DimOfColumn(dim, form.key_offset / 2, column)] = columns[column];
    }
  }
}

}  // namespace lapidary::cpu
