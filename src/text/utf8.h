// UTF-8 one code point at a time, read strictly (Unicode 15, table 3-7: no overlong forms, no
// surrogates unless asked for, nothing above U+10FFFF).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lapidary {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Status {
  kComplete,   // code_point and num_bytes describe a well-formed character
  kTruncated,  // every byte present is fine, more are needed
  kMalformed,  // no continuation can make the first byte part of a character
};

struct Utf8Char {
  Utf8Status status;
  uint32_t code_point;  // 0 unless complete
  uint32_t num_bytes;   // 1 unless complete: callers step over a bad byte alone
};

enum class Surrogates {
  kRefused,
  kAllowed,  // U+D800 to U+DFFF may stand alone, as in Python's str
};

// Reads the character at the front of `text`, which must not be empty.
inline Utf8Char ReadUtf8(std::string_view text, Surrogates surrogates = Surrogates::kRefused) {
  const auto byte = [&](size_t idx) { return static_cast<uint8_t>(text[idx]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Status::kComplete, lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Status::kMalformed, 0, 1};
  const uint32_t num_bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint32_t code_point = lead & (0x7Fu >> num_bytes);
  // The second byte alone decides about overlong forms, surrogates and the upper end.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const bool cuts_surrogates = lead == 0xED && surrogates == Surrogates::kRefused;
  uint8_t high = cuts_surrogates ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (uint32_t idx = 1; idx < num_bytes; ++idx) {
    if (idx >= text.size()) return {Utf8Status::kTruncated, 0, 1};
    if (byte(idx) < low || byte(idx) > high) return {Utf8Status::kMalformed, 0, 1};
    code_point = code_point << 6 | (byte(idx) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Status::kComplete, code_point, num_bytes};
}

// The bytes of a code point (surrogates as if they were characters); how many there are.
inline int EncodeUtf8(uint32_t code_point, std::array<uint8_t, 4>& bytes) {
  if (code_point < 0x80) {
    bytes[0] = static_cast<uint8_t>(code_point);
    return 1;
  }
  const int num_bytes = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
  for (int idx = num_bytes - 1; idx > 0; --idx, code_point >>= 6) {
    bytes[idx] = static_cast<uint8_t>(0x80 | (code_point & 0x3F));
  }
  constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  bytes[0] = static_cast<uint8_t>(kLead[num_bytes] | code_point);
  return num_bytes;
}

inline void AppendCodePoint(uint32_t code_point, std::string* out) {
  std::array<uint8_t, 4> bytes;
  const int num_bytes = EncodeUtf8(code_point, bytes);
  out->append(reinterpret_cast<const char*>(bytes.data()), num_bytes);
}

}  // namespace lapidary
