// Softmax attention of one row over a list of cached entries.
//
//   out[h] = sum_k softmax_k(q[h] . key_k) value_k,  scale 1.0, no softcap
//
// The visible keys come as segments in position order: pages, then the rows of this step. Scores,
// their maximum and the sums run over the keys from the first visible one upwards, so a row's
// result does not depend on how the keys are cut into segments (pages, chunks) nor on other rows.
#pragma once

#include <cstdint>
#include <span>

#include "model/kv_entry.h"

namespace lapidary::cpu {

// `count` entries (KvEntryPlan) of one KV head, `stride` floats apart.
struct KeySegment {
  const float* first = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
};

// Heads of one KV head: q [num_heads, entry.key_len], out [num_heads, entry.value_len];
// scores is scratch of 4 * (number of keys) floats. At least one key.
void AttendRow(std::span<const KeySegment> segments, const KvEntryPlan& entry, const float* q,
               int num_heads, float* scores, float* out);

}  // namespace lapidary::cpu
