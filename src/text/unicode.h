// The part of Python's str that depends on Unicode. Bytes that are not UTF-8 pass through unchanged
// and count as one character each; a lone surrogate is a character, as it is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lapidary {

struct CodePoint {
  uint32_t value;    // Invalid bytes decode to kInvalidByte | byte.
  size_t num_bytes;  // 0 only at the end of the text.
};
inline constexpr uint32_t kInvalidByte = 0x80000000;

CodePoint DecodeAt(std::string_view text, size_t offset);
void AppendUtf8(uint32_t code_point, std::string* out);

size_t CountCodePoints(std::string_view text);
// Byte offset of the code point with this index; text.size() when past the end.
size_t OffsetOfCodePoint(std::string_view text, size_t index);

bool IsSpace(uint32_t code_point);      // str.isspace
bool IsPrintable(uint32_t code_point);  // str.isprintable
bool IsCased(uint32_t code_point);
bool IsUppercase(uint32_t code_point);

enum class Case { kUpper, kLower, kTitle };
void AppendCased(Case to, uint32_t code_point, std::string* out);

// Byte ranges left after removing white space at the ends, as str.strip does.
size_t SkipSpaces(std::string_view text);
size_t EndWithoutSpaces(std::string_view text);

}  // namespace lapidary
