// Softmax attention over a list of cached entries, of one row or of several at once.
//
//   out[h] = sum_k softmax_k(q[h] . key_k) value_k,  scale 1.0, no softcap
//
// The visible keys come as segments in position order: pages, then the rows of this step. Scores,
// their maximum and the sums run over the keys from the first visible one upwards, so a row's
// result does not depend on how the keys are cut into segments (pages, chunks) nor on other rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/kv_format.h"

namespace lapidary::cpu {

// `count` entries (KvEntryPlan) of one KV head, `stride` elements apart.
struct KeySegment {
  const void* first = nullptr;  // floats, or elements of the cache's format
  int64_t stride = 0;
  int64_t count = 0;
  const float* scales = nullptr;  // [count, NumKvScales], of formats that have them

  const float* floats() const { return static_cast<const float*>(first); }
};

// One of several rows of a sequence.
struct AttentionRow {
  const float* q = nullptr;  // [num_heads, entry.key_len]
  float* out = nullptr;      // [num_heads, entry.value_len]
  // The keys it sees, counted from the first of the segments.
  int64_t begin = 0;
  int64_t end = 0;
};

// Grows to the largest call and stays.
struct AttentionScratch {
  std::vector<float> scores;
  std::vector<float> values;
  std::vector<float> inverse_sums;
  std::vector<float> decoded;  // a block of entries whose format is not f32
};

// One row, the heads of one KV head: q [num_heads, entry.key_len], out [num_heads,
// entry.value_len]. At least one key. Whatever the format, entries are read as the floats that they
// are decoded to, so the result is bitwise that of those floats.
void AttendRow(std::span<const KeySegment> segments, const KvEntryPlan& entry, const float* q,
               int num_heads, AttentionScratch& scratch, float* out,
               KvFormat format = KvFormat::kF32);

// The same for rows that share their keys: each block of keys is read once for all of them. Bitwise
// what AttendRow makes of each row. Neither begin nor end descends from row to row; every row sees
// a key. Takes 4 * rows * num_heads * (number of keys) bytes of scratch.
void AttendRows(std::span<const KeySegment> segments, const KvEntryPlan& entry, int num_heads,
                std::span<const AttentionRow> rows, AttentionScratch& scratch,
                KvFormat format = KvFormat::kF32);

}  // namespace lapidary::cpu
