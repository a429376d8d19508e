// The form of a cached token, and the two groups of cached layers. Kernels read this header.
#pragma once

#include "base/host_device.h"

namespace lapidary {

// How one token of one KV head lies in the cache: `entry_len` values, of which
//   value = entry[0, value_len)
//   key   = entry[key_offset, key_offset + key_len), to be multiplied with the cached-form query.
//
// Separate K and V:  [ V (d) | K (d) ]                  key = the second half, query as it is
// K is V:            [ V rotary | V rest | K rotary ]   (2R | d - 2R | 2R)
// In the second form K's other dims are V * w_k, so the query carries w_k there: it is
// [rest * w_k | rotary], and the key is the last d values of the entry, which share the rest with
// the value, the first d. Columns of the value are dims of the head in another order, below.
struct KvEntryPlan {
  int value_len = 0;
  int key_offset = 0;
  int key_len = 0;
  int entry_len = 0;

  bool k_is_v() const { return key_offset < value_len; }
  bool operator==(const KvEntryPlan&) const = default;
};

// Where K is V: rotary dims [0, R) and [d/2, d/2 + R) come first, the others behind them in their
// order. `rotary_pairs` is R, half of the key's offset.
LAPIDARY_HOST_DEVICE constexpr int ColumnOfDim(int head_dim, int rotary_pairs, int dim) {
  const int half = dim < head_dim / 2 ? 0 : 1;
  const int pair = dim - half * (head_dim / 2);
  if (pair < rotary_pairs) return half * rotary_pairs + pair;
  return half == 0 ? dim + rotary_pairs : dim;
}
LAPIDARY_HOST_DEVICE constexpr int DimOfColumn(int head_dim, int rotary_pairs, int column) {
  if (column < rotary_pairs) return column;
  if (column < 2 * rotary_pairs) return column - rotary_pairs + head_dim / 2;
  return column < head_dim / 2 + rotary_pairs ? column - rotary_pairs : column;
}

inline constexpr int kNumKvGroups = 2;
inline constexpr int kSlidingGroup = 0;
inline constexpr int kFullGroup = 1;

}  // namespace lapidary
