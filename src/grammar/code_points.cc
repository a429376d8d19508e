#include "grammar/code_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/utf8.h"

namespace lapidary::grammar {
namespace {

// Appends the byte sequences of [low, high], which holds no surrogate.
void AddUtf8(RegexPool* pool, uint32_t low, uint32_t high, std::vector<RegexId>* sequences) {
  // Cut where the length changes and where the low bits of one end are not all zeros (or ones),
  // until each piece is a product of byte ranges.
  std::vector<CodePointRange> work = {{low, high}};
  while (!work.empty()) {
    auto [begin, end] = work.back();
    work.pop_back();
    bool is_cut = false;
    for (uint32_t limit : {0x7Fu, 0x7FFu, 0xFFFFu}) {
      if (begin <= limit && limit < end) {
        work.push_back({limit + 1, end});
        work.push_back({begin, limit});
        is_cut = true;
        break;
      }
    }
    for (uint32_t bits = 6; !is_cut && bits < 24 && end >= 0x80; bits += 6) {
      const uint32_t mask = (1u << bits) - 1;
      if ((begin & ~mask) == (end & ~mask)) break;
      if ((begin & mask) != 0) {
        work.push_back({(begin | mask) + 1, end});
        work.push_back({begin, begin | mask});
        is_cut = true;
      } else if ((end & mask) != mask) {
        work.push_back({end & ~mask, end});
        work.push_back({begin, (end & ~mask) - 1});
        is_cut = true;
      }
    }
    if (is_cut) continue;
    std::array<uint8_t, 4> first;
    std::array<uint8_t, 4> last;
    const int length = EncodeUtf8(begin, first);
    EncodeUtf8(end, last);
    RegexId sequence = RegexPool::kEmpty;
    for (int i = length - 1; i >= 0; --i) {
      sequence = pool->Concat(pool->Bytes(ByteSet::Range(first[i], last[i])), sequence);
    }
    sequences->push_back(sequence);
  }
}

void AddRange(RegexPool* pool, uint32_t low, uint32_t high, std::vector<RegexId>* sequences) {
  constexpr uint32_t kFirstSurrogate = 0xD800;
  constexpr uint32_t kLastSurrogate = 0xDFFF;
  if (low < kFirstSurrogate) AddUtf8(pool, low, std::min(high, kFirstSurrogate - 1), sequences);
  if (high > kLastSurrogate) AddUtf8(pool, std::max(low, kLastSurrogate + 1), high, sequences);
}

bool NeedsEscape(uint32_t code_point) {
  return code_point < 0x20 || code_point == '"' || code_point == '\\';
}

char ShortEscape(uint32_t code_point) {
  switch (code_point) {
    case '"':
    case '\\':
      return static_cast<char>(code_point);
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return 0;
  }
}

RegexId EscapedControl(RegexPool* pool, uint32_t code_point) {
  const uint32_t low = code_point & 0xF;
  ByteSet digit;
  digit.Add(static_cast<uint8_t>("0123456789abcdef"[low]));
  digit.Add(static_cast<uint8_t>("0123456789ABCDEF"[low]));
  return pool->Concat(pool->Literal(code_point < 0x10 ? "\\u000" : "\\u001"), pool->Bytes(digit));
}

}  // namespace

std::vector<CodePointRange> CodePointSet::Ranges() const {
  std::vector<CodePointRange> sorted = ranges_;
  std::ranges::sort(sorted, {}, &CodePointRange::low);
  std::vector<CodePointRange> joined;
  for (CodePointRange range : sorted) {
    if (range.low > range.high) continue;
    if (!joined.empty() && range.low <= joined.back().high + 1) {
      joined.back().high = std::max(joined.back().high, range.high);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

CodePointSet CodePointSet::Complement() const {
  CodePointSet complement;
  uint32_t next = 0;
  for (CodePointRange range : Ranges()) {
    if (range.low > next) complement.Add(next, range.low - 1);
    next = range.high + 1;
  }
  if (next <= kMaxCodePoint) complement.Add(next, kMaxCodePoint);
  return complement;
}

bool CodePointSet::Has(uint32_t code_point) const {
  return std::ranges::any_of(ranges_, [&](CodePointRange range) {
    return range.low <= code_point && code_point <= range.high;
  });
}

RegexId OneOf(RegexPool* pool, const CodePointSet& set, TextEncoding encoding) {
  std::vector<RegexId> sequences;
  if (encoding == TextEncoding::kUtf8) {
    for (CodePointRange range : set.Ranges()) AddRange(pool, range.low, range.high, &sequences);
    return pool->Or(sequences);
  }
  ByteSet short_escapes;
  const CodePointSet escaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  CodePointSet plain_complement = set.Complement();
  plain_complement.Add(escaped);
  for (CodePointRange range : plain_complement.Complement().Ranges()) {
    AddRange(pool, range.low, range.high, &sequences);
  }
  for (CodePointRange range : set.Ranges()) {
    for (uint32_t code_point = range.low; code_point <= std::min(range.high, uint32_t{'\\'});
         ++code_point) {
      if (!NeedsEscape(code_point)) continue;
      if (const char escape = ShortEscape(code_point); escape != 0) {
        short_escapes.Add(static_cast<uint8_t>(escape));
      } else {
        sequences.push_back(EscapedControl(pool, code_point));
      }
    }
  }
  sequences.push_back(pool->Concat(pool->Byte('\\'), pool->Bytes(short_escapes)));
  return pool->Or(sequences);
}

std::string EscapeJson(std::string_view text) {
  std::string escaped;
  for (char byte : text) {
    const uint8_t value = static_cast<uint8_t>(byte);
    if (!NeedsEscape(value)) {
      escaped += byte;
    } else if (const char escape = ShortEscape(value); escape != 0) {
      escaped += '\\';
      escaped += escape;
    } else {
      escaped += fmt::format("\\u{:04x}", value);
    }
  }
  return escaped;
}

RegexId TextLiteral(RegexPool* pool, std::string_view text, TextEncoding encoding) {
  return pool->Literal(encoding == TextEncoding::kUtf8 ? std::string(text) : EscapeJson(text));
}

}  // namespace lapidary::grammar
