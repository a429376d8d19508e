#include "text/unicode.h"

#include <algorithm>
#include <iterator>

#include "text/utf8.h"

namespace lapidary {
namespace {

struct CodeRange {
  uint32_t first;
  uint32_t last;
};
struct CaseRange {
  uint32_t first;
  uint32_t last;
  uint32_t stride;  // 2 where upper and lower case alternate.
  int32_t delta;
};
struct CaseSpecial {
  uint32_t code_point;
  const char* mapped;
};

#include "text/unicode_tables.inc"

template <typename Range, size_t kCount>
const Range* FindRange(const Range (&ranges)[kCount], uint32_t code_point) {
  const Range* range =
      std::lower_bound(std::begin(ranges), std::end(ranges), code_point,
                       [](const Range& candidate, uint32_t cp) { return candidate.last < cp; });
  return range != std::end(ranges) && range->first <= code_point ? range : nullptr;
}

template <size_t kRanges, size_t kSpecials>
void MapCase(const CaseRange (&ranges)[kRanges], const CaseSpecial (&specials)[kSpecials],
             uint32_t code_point, std::string* out) {
  for (const CaseSpecial& special : specials) {
    if (special.code_point == code_point) {
      *out += special.mapped;
      return;
    }
  }
  const CaseRange* range = FindRange(ranges, code_point);
  if (range != nullptr && (code_point - range->first) % range->stride == 0) {
    code_point += range->delta;
  }
  AppendUtf8(code_point, out);
}

}  // namespace

CodePoint DecodeAt(std::string_view text, size_t offset) {
  if (offset >= text.size()) return {0, 0};
  const Utf8Char front = ReadUtf8(text.substr(offset), Surrogates::kAllowed);
  if (front.status == Utf8Status::kComplete) return {front.code_point, front.num_bytes};
  return {kInvalidByte | static_cast<unsigned char>(text[offset]), 1};
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  if (code_point & kInvalidByte) {
    out->push_back(static_cast<char>(code_point & 0xFF));
  } else {
    AppendCodePoint(code_point, out);
  }
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (size_t offset = 0; offset < text.size(); offset += DecodeAt(text, offset).num_bytes) ++count;
  return count;
}

size_t OffsetOfCodePoint(std::string_view text, size_t index) {
  size_t offset = 0;
  while (index > 0 && offset < text.size()) {
    offset += DecodeAt(text, offset).num_bytes;
    --index;
  }
  return offset;
}

bool IsSpace(uint32_t cp) {
  return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xA0 ||
         cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
         cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool IsPrintable(uint32_t cp) {
  if (cp < 0x80) return cp >= 0x20 && cp != 0x7F;
  return !(cp & kInvalidByte) && FindRange(kUnprintable, cp) == nullptr;
}

bool IsCased(uint32_t cp) {
  if (cp < 0x80) return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z');
  return FindRange(kCased, cp) != nullptr;
}

bool IsUppercase(uint32_t cp) {
  return cp < 0x80 ? cp >= 'A' && cp <= 'Z' : FindRange(kUppercase, cp) != nullptr;
}

void AppendCased(Case to, uint32_t cp, std::string* out) {
  if (cp < 0x80) {
    const bool is_upper = cp >= 'A' && cp <= 'Z';
    const bool is_lower = cp >= 'a' && cp <= 'z';
    const bool flip = to == Case::kLower ? is_upper : is_lower;
    out->push_back(static_cast<char>(flip ? cp ^ 0x20 : cp));
  } else if (to == Case::kUpper) {
    MapCase(kUpperRanges, kUpperSpecials, cp, out);
  } else if (to == Case::kLower) {
    MapCase(kLowerRanges, kLowerSpecials, cp, out);
  } else {
    MapCase(kTitleRanges, kTitleSpecials, cp, out);
  }
}

size_t SkipSpaces(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const CodePoint next = DecodeAt(text, offset);
    if (!IsSpace(next.value)) break;
    offset += next.num_bytes;
  }
  return offset;
}

size_t EndWithoutSpaces(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && end - start < 4 && (text[start] & 0xC0) == 0x80) --start;
    const CodePoint last = DecodeAt(text, start);
    if (last.num_bytes != end - start || !IsSpace(last.value)) break;
    end = start;
  }
  return end;
}

}  // namespace lapidary
