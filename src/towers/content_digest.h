// The digest by which equal images and audio are known: 128 bits of SHA-256.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace lapidary {

struct ContentDigest {
  uint64_t low = 0;
  uint64_t high = 0;
  auto operator<=>(const ContentDigest&) const = default;
};

// Of `data`, and of the numbers that say how it is read.
ContentDigest DigestContent(std::span<const std::byte> data, std::initializer_list<int64_t> facts);

}  // namespace lapidary
