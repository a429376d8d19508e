// A set of bytes, as four words.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace lapidary::grammar {

class ByteSet {
 public:
  constexpr ByteSet() = default;

  static constexpr ByteSet All() {
    ByteSet set;
    for (uint64_t& word : set.words_) word = ~uint64_t{0};
    return set;
  }
  static constexpr ByteSet Of(uint8_t byte) { return Range(byte, byte); }
  // Both ends are members.
  static constexpr ByteSet Range(uint8_t low, uint8_t high) {
    ByteSet set;
    for (int byte = low; byte <= high; ++byte) set.Add(static_cast<uint8_t>(byte));
    return set;
  }

  constexpr void Add(uint8_t byte) { words_[byte >> 6] |= uint64_t{1} << (byte & 63); }
  constexpr void Remove(uint8_t byte) { words_[byte >> 6] &= ~(uint64_t{1} << (byte & 63)); }
  constexpr bool Has(uint8_t byte) const { return (words_[byte >> 6] >> (byte & 63) & 1) != 0; }
  constexpr bool Empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  constexpr bool Intersects(const ByteSet& other) const { return !(*this & other).Empty(); }

  constexpr ByteSet operator|(const ByteSet& other) const {
    ByteSet set = *this;
    for (size_t i = 0; i < words_.size(); ++i) set.words_[i] |= other.words_[i];
    return set;
  }
  constexpr ByteSet operator&(const ByteSet& other) const {
    ByteSet set = *this;
    for (size_t i = 0; i < words_.size(); ++i) set.words_[i] &= other.words_[i];
    return set;
  }
  constexpr ByteSet operator~() const {
    ByteSet set;
    for (size_t i = 0; i < words_.size(); ++i) set.words_[i] = ~words_[i];
    return set;
  }
  constexpr bool operator==(const ByteSet&) const = default;

  // Calls visit(byte) for every member, in order.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t word = words_[i]; word != 0; word &= word - 1) {
        visit(static_cast<uint8_t>(i * 64 + std::countr_zero(word)));
      }
    }
  }

  const std::array<uint64_t, 4>& words() const { return words_; }

 private:
  std::array<uint64_t, 4> words_{};
};

}  // namespace lapidary::grammar
