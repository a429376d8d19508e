// Exact decimal numbers, and the texts of the numbers in a range.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/regex_pool.h"

namespace lapidary::grammar {

// integer.fraction, without leading or trailing zeros; zero is never negative.
struct Decimal {
  bool negative = false;
  std::string integer = "0";
  std::string fraction = {};

  // `text` is a JSON number. Exponents are cut to +-400, beyond what JSON readers keep apart.
  static Decimal Parse(std::string_view text);
  bool IsZero() const { return integer == "0" && fraction.empty(); }
  bool IsInteger() const { return fraction.empty(); }
  std::string ToString() const;

  bool operator==(const Decimal&) const = default;
  std::strong_ordering operator<=>(const Decimal& other) const;
};

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRange {
  bool integer = false;
  std::optional<NumberBound> min = {};
  std::optional<NumberBound> max = {};
  std::vector<Decimal> multiples_of = {};

  bool Has(const Decimal& value) const;
};

// The JSON texts of the numbers in the range, by value exactly. Exponents are written only where
// the bounds say no more than a sign. Null for a multipleOf that cannot be expressed.
std::optional<RegexId> NumberTexts(RegexPool* pool, const NumberRange& range);

}  // namespace lapidary::grammar
