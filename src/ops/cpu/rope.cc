#include "ops/cpu/rope.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cpu/elementwise.h"

namespace lapidary::cpu {
namespace {

// Stored K-is-V entries end with the rotary dims: [0, R) then [d/2, d/2 + R) of the rotated key.
void CopyRotaryDims(RotaryHead rotary, const float* head, float* to) {
  const int pairs = rotary.num_rotary_pairs;
  std::copy_n(head, pairs, to);
  std::copy_n(head + rotary.head_dim / 2, pairs, to + pairs);
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
  RmsNorm(raw, q_norm, eps, dim, query);
  ApplyRope(rotary, cos, sin, query);
  if (form.key_offset != 0) return;  // Separate K and V: the query as it is.

  const int pairs = rotary.num_rotary_pairs;
  CopyRotaryDims(rotary, query, query + dim);
  for (int half = 0; half < 2; ++half) {
    float* dims = query + half * dim / 2;
    const float* norm = k_norm + half * dim / 2;
    std::fill_n(dims, pairs, 0.0f);
    for (int idx = pairs; idx < dim / 2; ++idx) dims[idx] *= norm[idx];
  }
}

void MakeKvEntry(RotaryHead rotary, const KvEntryPlan& form, const float* k_raw, const float* v_raw,
                 const float* k_norm, float eps, const float* cos, const float* sin, float* entry) {
  const int dim = rotary.head_dim;
  float* value = entry;
  float* key_part = entry + dim;
  RmsNorm(v_raw, nullptr, eps, dim, value);
  if (form.key_offset != 0) {
    RmsNorm(k_raw, k_norm, eps, dim, key_part);
    ApplyRope(rotary, cos, sin, key_part);
    return;
  }
  constexpr int kMaxHeadDim = 4096;  // config.cc refuses more
  CHECK_LE(dim, kMaxHeadDim);
  float key[kMaxHeadDim];
  RmsNorm(k_raw, k_norm, eps, dim, key);
  ApplyRope(rotary, cos, sin, key);
  CopyRotaryDims(rotary, key, key_part);
}

}  // namespace lapidary::cpu
