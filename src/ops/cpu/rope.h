// Rotary embedding tables and the forms in which queries, keys and values meet in the cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/plan.h"

namespace lapidary::cpu {

// cos and sin of position * frequency for the rows of one step: [rows, num_rotary_pairs] each. The
// angle is a float32 product, as in the reference; its cosine is correctly rounded.
struct RopeTable {
  int num_rotary_pairs = 0;
  std::vector<float> cos;
  std::vector<float> sin;

  void Fill(const RopePlan& rope, std::span<const int32_t> positions);
  const float* CosRow(int64_t row) const { return cos.data() + row * num_rotary_pairs; }
  const float* SinRow(int64_t row) const { return sin.data() + row * num_rotary_pairs; }
};

// Rotates pair j of one head, (x[j], x[j + head_dim / 2]), by the row's angle j; the rest stays.
void ApplyRope(const RopePlan& rope, const float* cos, const float* sin, float* head);

// raw [head_dim] -> query [kv_entry.key_len] in cached form (KvEntryPlan): norm, rope, and for
// K-is-V layers the donor's key-norm weight folded in. `k_norm` [head_dim] is the KV owner's.
void MakeCachedQuery(const LayerPlan& layer, const float* raw, const float* q_norm,
                     const float* k_norm, float eps, const float* cos, const float* sin,
                     float* query);

// k_raw, v_raw [head_dim] -> entry [kv_entry.entry_len]; v_raw is ignored when K is V.
void MakeKvEntry(const LayerPlan& layer, const float* k_raw, const float* v_raw,
                 const float* k_norm, float eps, const float* cos, const float* sin, float* entry);

}  // namespace lapidary::cpu
