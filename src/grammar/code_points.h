// Sets of Unicode code points, and the bytes by which a text holds them.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/regex_pool.h"

namespace lapidary::grammar {

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

struct CodePointRange {
  uint32_t low;
  uint32_t high;  // a member
};

class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodePointRange> ranges) {
    for (CodePointRange range : ranges) Add(range.low, range.high);
  }
  static CodePointSet All() { return {{0, kMaxCodePoint}}; }

  void Add(uint32_t low, uint32_t high) { ranges_.push_back({low, high}); }
  void Add(const CodePointSet& other) {
    ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  }
  // Sorted, disjoint, not adjacent.
  std::vector<CodePointRange> Ranges() const;
  CodePointSet Complement() const;
  bool Has(uint32_t code_point) const;

 private:
  std::vector<CodePointRange> ranges_;
};

// How characters are written in the text that a language is about.
enum class TextEncoding {
  kUtf8,        // as they are
  kJsonString,  // between the quotes of a JSON string: quote, backslash and controls are escaped
};

// One character of the set. Surrogates are in no text.
RegexId OneOf(RegexPool* pool, const CodePointSet& set, TextEncoding encoding);

// The characters of `text` (UTF-8), one after another.
RegexId TextLiteral(RegexPool* pool, std::string_view text, TextEncoding encoding);

// As JSON would write it between quotes, with the shortest escapes.
std::string EscapeJson(std::string_view text);

}  // namespace lapidary::grammar
