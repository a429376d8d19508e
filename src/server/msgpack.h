// Writes MessagePack, as much of it as KV events have: https://github.com/msgpack/msgpack spec.md.
// Integers are as short as they can be, as of other writers.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace lapidary {

class MsgpackWriter {
 public:
  void Nil() { Byte(0xc0); }
  void Double(double value) { Big(0xcb, std::bit_cast<uint64_t>(value), 8); }
  void Unsigned(uint64_t value) {
    if (value < 0x80) return Byte(value);
    if (value <= 0xff) return Big(0xcc, value, 1);
    if (value <= 0xffff) return Big(0xcd, value, 2);
    if (value <= 0xffffffff) return Big(0xce, value, 4);
    Big(0xcf, value, 8);
  }
  void Int(int64_t value) {
    if (value >= 0) return Unsigned(static_cast<uint64_t>(value));
    const auto bits = static_cast<uint64_t>(value);
    if (value >= -32) return Byte(bits);
    if (value >= INT8_MIN) return Big(0xd0, bits, 1);
    if (value >= INT16_MIN) return Big(0xd1, bits, 2);
    if (value >= INT32_MIN) return Big(0xd2, bits, 4);
    Big(0xd3, bits, 8);
  }
  // UTF-8.
  void Text(std::string_view text) {
    if (text.size() < 32) {
      Byte(0xa0 | text.size());
    } else if (text.size() <= 0xff) {
      Big(0xd9, text.size(), 1);
    } else if (text.size() <= 0xffff) {
      Big(0xda, text.size(), 2);
    } else {
      Big(0xdb, text.size(), 4);
    }
    bytes_ += text;
  }
  // This many values follow,
  void Array(size_t num_values) { Header(0x90, 0xdc, num_values); }
  // or this many keys, each with its value.
  void Map(size_t num_keys) { Header(0x80, 0xde, num_keys); }

  const std::string& bytes() const { return bytes_; }

 private:
  void Byte(uint64_t byte) { bytes_.push_back(static_cast<char>(byte & 0xff)); }
  void Big(uint8_t type, uint64_t value, int num_bytes) {
    Byte(type);
    for (int shift = 8 * (num_bytes - 1); shift >= 0; shift -= 8) Byte(value >> shift);
  }
  void Header(uint8_t short_type, uint8_t type, size_t count) {
    if (count < 16) return Byte(short_type | count);
    if (count <= 0xffff) return Big(type, count, 2);
    Big(type + 1, count, 4);
  }

  std::string bytes_;
};

}  // namespace lapidary
