// The form of a cached token, and the two groups of cached layers. No other header: kernels read
// this one.
#pragma once

namespace lapidary {

// How one token of one KV head lies in the cache: `entry_len` values, of which
//   value = entry[0, value_len)
//   key   = entry[key_offset, key_offset + key_len), to be multiplied with the cached-form query.
//
// Separate K and V:  [ V (d) | K (d) ]                    key = the second half, query as it is
// K is V:            [ V (d) | rotary dims of K (2R) ]    key = the whole entry
// In the second form K's other dims are V * w_k, so the query carries w_k there and zero at the
// rotary dims, followed by its rotary dims: one dot product over d + 2R values, and V is stored
// once.
struct KvEntryPlan {
  int value_len = 0;
  int key_offset = 0;
  int key_len = 0;
  int entry_len = 0;
  bool operator==(const KvEntryPlan&) const = default;
};

inline constexpr int kNumKvGroups = 2;
inline constexpr int kSlidingGroup = 0;
inline constexpr int kFullGroup = 1;

}  // namespace lapidary
