// Orders of dims in which adapters of experts are stored, changed in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace lapidary {

// [a, b, c] to [c, a, b], or to [c, b, a] with `swap`, in place.
template <typename Value>
void MoveLastFirst(std::byte* data, int64_t a, int64_t b, int64_t c, bool swap) {
  std::vector<Value> from(a * b * c);
  std::memcpy(from.data(), data, from.size() * sizeof(Value));
  std::vector<Value> to(from.size());
  for (int64_t a_idx = 0; a_idx < a; ++a_idx) {
    for (int64_t b_idx = 0; b_idx < b; ++b_idx) {
      const int64_t place = swap ? b_idx * a + a_idx : a_idx * b + b_idx;
      for (int64_t c_idx = 0; c_idx < c; ++c_idx) {
        to[c_idx * a * b + place] = from[(a_idx * b + b_idx) * c + c_idx];
      }
    }
  }
  std::memcpy(data, to.data(), to.size() * sizeof(Value));
}

// [experts, a, b] to [experts, b, a], in place.
template <typename Value>
void SwapLastTwo(std::byte* data, int64_t experts, int64_t a, int64_t b) {
  std::vector<Value> from(experts * a * b);
  std::memcpy(from.data(), data, from.size() * sizeof(Value));
  std::vector<Value> to(from.size());
  for (int64_t expert = 0; expert < experts; ++expert) {
    const int64_t base = expert * a * b;
    for (int64_t a_idx = 0; a_idx < a; ++a_idx) {
      for (int64_t b_idx = 0; b_idx < b; ++b_idx) {
        to[base + b_idx * a + a_idx] = from[base + a_idx * b + b_idx];
      }
    }
  }
  std::memcpy(data, to.data(), to.size() * sizeof(Value));
}

}  // namespace lapidary
