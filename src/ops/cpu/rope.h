// Rotary embedding tables and the forms in which queries, keys and values meet in the cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/kv_entry.h"

namespace lapidary::cpu {

// Pair j of a head is (x[j], x[j + head_dim / 2]); the first `num_rotary_pairs` are rotated.
struct RotaryHead {
  int head_dim = 0;
  int num_rotary_pairs = 0;
};

// cos and sin of position * frequency for the rows of one step: [rows, num_rotary_pairs] each. The
// angle is a float32 product, as in the reference; its cosine is correctly rounded.
struct RopeTable {
  int num_rotary_pairs = 0;
  std::vector<float> cos;
  std::vector<float> sin;

  // frequencies [num_rotary_pairs]
  void Fill(std::span<const float> frequencies, std::span<const int32_t> positions);
  const float* CosRow(int64_t row) const { return cos.data() + row * num_rotary_pairs; }
  const float* SinRow(int64_t row) const { return sin.data() + row * num_rotary_pairs; }
};

// Rotates pair j of one head by the row's angle j; the rest stays.
void ApplyRope(RotaryHead rotary, const float* cos, const float* sin, float* head);

// raw [head_dim] -> query [form.key_len] in cached form: norm, rope, and where K is V the key
// norm's weight folded in. `k_norm` [head_dim] is that of the layer which owns the entries.
void MakeCachedQuery(RotaryHead rotary, const KvEntryPlan& form, const float* raw,
                     const float* q_norm, const float* k_norm, float eps, const float* cos,
                     const float* sin, float* query);

// k_raw, v_raw [head_dim] -> entry [form.entry_len]. Where K is V both are the same.
void MakeKvEntry(RotaryHead rotary, const KvEntryPlan& form, const float* k_raw, const float* v_raw,
                 const float* k_norm, float eps, const float* cos, const float* sin, float* entry);

// Heads of weighted sums of values [num_heads, form.value_len]: from the order of an entry's
// columns to that of the head's dims.
void RestoreValueOrder(const KvEntryPlan& form, int num_heads, float* values);

}  // namespace lapidary::cpu
