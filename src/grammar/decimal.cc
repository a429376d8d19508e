#include "grammar/decimal.h"

#include <algorithm>
#include <charconv>

namespace lapidary::grammar {
namespace {

int CompareMagnitude(const Decimal& a, const Decimal& b) {
  if (a.integer.size() != b.integer.size()) return a.integer.size() < b.integer.size() ? -1 : 1;
  if (const int order = a.integer.compare(b.integer); order != 0) return order;
  return a.fraction.compare(b.fraction);
}

RegexId DigitsFrom(RegexPool* pool, char low, char high) {
  return low > high
             ? RegexPool::kNothing
             : pool->Bytes(ByteSet::Range(static_cast<uint8_t>(low), static_cast<uint8_t>(high)));
}
RegexId Digits(RegexPool* pool, uint32_t min, uint32_t max) {
  return pool->Repeat(DigitsFrom(pool, '0', '9'), min, max);
}

// Digit strings as long as `bound`, on one side of it and not equal.
RegexId SameLengthBeyond(RegexPool* pool, const std::string& bound, bool above) {
  std::vector<RegexId> options;
  for (size_t i = 0; i < bound.size(); ++i) {
    const uint32_t rest = static_cast<uint32_t>(bound.size() - i - 1);
    const char digit = bound[i];
    const char least = i == 0 && bound.size() > 1 ? '1' : '0';
    const RegexId differs = above ? DigitsFrom(pool, static_cast<char>(digit + 1), '9')
                                  : DigitsFrom(pool, least, static_cast<char>(digit - 1));
    options.push_back(pool->Concat(pool->Literal(std::string_view(bound).substr(0, i)),
                                   pool->Concat(differs, Digits(pool, rest, rest))));
  }
  return pool->Or(options);
}

// Integers without sign, greater (or less) than `bound`.
RegexId IntegersBeyond(RegexPool* pool, const std::string& bound, bool above) {
  const RegexId leading = DigitsFrom(pool, '1', '9');
  const uint32_t length = static_cast<uint32_t>(bound.size());
  std::vector<RegexId> options = {SameLengthBeyond(pool, bound, above)};
  if (above) {
    options.push_back(pool->Concat(leading, Digits(pool, length, RegexPool::kUnbounded)));
  } else if (length > 1) {
    options.push_back(pool->Byte('0'));
    options.push_back(pool->Concat(leading, Digits(pool, 0, length - 2)));
  }
  return pool->Or(options);
}

// ".digits" or nothing, where 0.digits is beyond 0.bound (or equal, if asked for).
RegexId FractionsBeyond(RegexPool* pool, const std::string& bound, bool above, bool or_equal) {
  const RegexId any_digits = Digits(pool, 0, RegexPool::kUnbounded);
  const RegexId zeros = pool->Repeat(pool->Byte('0'), 0, RegexPool::kUnbounded);
  std::vector<RegexId> options;  // behind the point
  for (size_t i = 0; i < bound.size(); ++i) {
    const RegexId prefix = pool->Literal(std::string_view(bound).substr(0, i));
    const RegexId differs = above ? DigitsFrom(pool, static_cast<char>(bound[i] + 1), '9')
                                  : DigitsFrom(pool, '0', static_cast<char>(bound[i] - 1));
    options.push_back(pool->Concat(prefix, pool->Concat(differs, any_digits)));
    if (!above && i > 0)
      options.push_back(prefix);  // ends early: less, for the bound ends non-zero
  }
  const RegexId exact = pool->Literal(bound);
  if (above) {
    const RegexId more = pool->Concat(zeros, pool->Concat(DigitsFrom(pool, '1', '9'), any_digits));
    options.push_back(pool->Concat(exact, more));
  }
  if (or_equal) {
    options.push_back(pool->Concat(
        exact, bound.empty() ? pool->Repeat(pool->Byte('0'), 1, RegexPool::kUnbounded) : zeros));
  }
  const RegexId written = pool->Concat(pool->Byte('.'), pool->Or(options));
  // No fraction is 0.
  const bool zero_fits = bound.empty() ? or_equal : !above;
  return zero_fits ? pool->Optional(written) : written;
}

// Numbers without sign on one side of `bound`, which is not negative.
RegexId MagnitudesBeyond(RegexPool* pool, const NumberBound& bound, bool above, bool integer) {
  const std::string& whole = bound.value.integer;
  const RegexId any_fraction =
      integer
          ? RegexPool::kEmpty
          : pool->Optional(pool->Concat(pool->Byte('.'), Digits(pool, 1, RegexPool::kUnbounded)));
  const RegexId beyond = pool->Concat(IntegersBeyond(pool, whole, above), any_fraction);
  RegexId equal = RegexPool::kNothing;
  if (!integer) {
    equal = FractionsBeyond(pool, bound.value.fraction, above, !bound.exclusive);
  } else if (bound.value.fraction.empty() ? !bound.exclusive : !above) {
    equal = RegexPool::kEmpty;
  }
  return pool->Or(beyond, pool->Concat(pool->Literal(whole), equal));
}

RegexId UnsignedNumber(RegexPool* pool, bool integer, bool with_exponent) {
  const RegexId whole =
      pool->Or(pool->Byte('0'),
               pool->Concat(DigitsFrom(pool, '1', '9'), Digits(pool, 0, RegexPool::kUnbounded)));
  if (integer) return whole;
  const RegexId digits = Digits(pool, 1, RegexPool::kUnbounded);
  RegexId number = pool->Concat(whole, pool->Optional(pool->Concat(pool->Byte('.'), digits)));
  if (with_exponent) {
    const RegexId sign = pool->Optional(pool->Bytes(ByteSet::Of('+') | ByteSet::Of('-')));
    const RegexId mark = pool->Bytes(ByteSet::Of('e') | ByteSet::Of('E'));
    // Three digits reach beyond what readers can hold.
    number = pool->Concat(
        number, pool->Optional(pool->Concat(mark, pool->Concat(sign, Digits(pool, 1, 3)))));
  }
  return number;
}

// Numbers without sign between two magnitudes, either of which may be absent.
RegexId Magnitudes(RegexPool* pool, const std::optional<NumberBound>& min,
                   const std::optional<NumberBound>& max, bool integer) {
  if (!min && !max) return UnsignedNumber(pool, integer, /*with_exponent=*/true);
  RegexId numbers = RegexPool::kAnything;
  if (min) numbers = pool->And(numbers, MagnitudesBeyond(pool, *min, /*above=*/true, integer));
  if (max) numbers = pool->And(numbers, MagnitudesBeyond(pool, *max, /*above=*/false, integer));
  return numbers;
}

NumberBound Negated(NumberBound bound) {
  if (!bound.value.IsZero()) bound.value.negative = !bound.value.negative;
  return bound;
}

// Texts without sign whose value is a multiple of `step`.
std::optional<RegexId> Multiples(RegexPool* pool, const Decimal& step) {
  constexpr uint32_t kMaxDivisor = 1'000'000;
  if (step.negative || step.IsZero() || step.integer.size() + step.fraction.size() > 9) {
    return std::nullopt;
  }
  uint32_t scaled = 0;
  const std::string digits = step.integer + step.fraction;
  std::from_chars(digits.data(), digits.data() + digits.size(), scaled);
  if (step.fraction.empty()) {
    if (scaled > kMaxDivisor) return std::nullopt;
    return pool->Multiple(scaled);
  }
  // A step that divides 1 leaves the integer free and lists the fractions.
  uint32_t unit = 1;
  for (size_t i = 0; i < step.fraction.size(); ++i) unit *= 10;
  if (unit % scaled != 0 || unit / scaled > 1000) {
    if (scaled != 1) return std::nullopt;
  }
  const RegexId whole = Digits(pool, 1, RegexPool::kUnbounded);
  if (scaled == 1) {
    const RegexId fraction = Digits(pool, 1, static_cast<uint32_t>(step.fraction.size()));
    return pool->Concat(whole, pool->Optional(pool->Concat(pool->Byte('.'), fraction)));
  }
  const RegexId zeros = pool->Repeat(pool->Byte('0'), 0, RegexPool::kUnbounded);
  std::vector<RegexId> fractions = {RegexPool::kEmpty, pool->Concat(pool->Literal(".0"), zeros)};
  for (uint32_t value = scaled; value < unit; value += scaled) {
    std::string text = std::to_string(value);
    text.insert(0, step.fraction.size() - text.size(), '0');
    while (text.back() == '0') text.pop_back();
    fractions.push_back(pool->Concat(pool->Literal("." + text), zeros));
  }
  return pool->Concat(whole, pool->Or(fractions));
}

}  // namespace

Decimal Decimal::Parse(std::string_view text) {
  Decimal decimal;
  decimal.negative = text.starts_with('-');
  if (decimal.negative) text.remove_prefix(1);
  int exponent = 0;
  if (const size_t mark = text.find_first_of("eE"); mark != std::string_view::npos) {
    std::string_view digits = text.substr(mark + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const bool is_small = digits.starts_with('-');
    if (std::from_chars(digits.data(), digits.data() + digits.size(), exponent).ec != std::errc()) {
      exponent = is_small ? -400 : 400;
    }
    exponent = std::clamp(exponent, -400, 400);
    text = text.substr(0, mark);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string integer(text.substr(0, point));
  std::string fraction(point < text.size() ? text.substr(point + 1) : "");
  for (; exponent > 0; --exponent) {
    integer += fraction.empty() ? '0' : fraction[0];
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(fraction.begin(), integer.empty() ? '0' : integer.back());
    if (!integer.empty()) integer.pop_back();
  }
  integer.erase(0, std::min(integer.find_first_not_of('0'), integer.size()));
  fraction.resize(fraction.find_last_not_of('0') + 1);
  decimal.integer = integer.empty() ? "0" : integer;
  decimal.fraction = fraction;
  if (decimal.IsZero()) decimal.negative = false;
  return decimal;
}

std::string Decimal::ToString() const {
  return (negative ? "-" : "") + integer + (fraction.empty() ? "" : "." + fraction);
}

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (negative != other.negative) {
    return negative ? std::strong_ordering::less : std::strong_ordering::greater;
  }
  const int order = CompareMagnitude(*this, other) * (negative ? -1 : 1);
  return order <=> 0;
}

bool NumberRange::Has(const Decimal& value) const {
  if (integer && !value.IsInteger()) return false;
  if (min && (value < min->value || (min->exclusive && value == min->value))) return false;
  if (max && (value > max->value || (max->exclusive && value == max->value))) return false;
  if (multiples_of.empty()) return true;
  RegexPool pool;
  Decimal magnitude = value;
  magnitude.negative = false;
  for (const Decimal& step : multiples_of) {
    const auto multiples = Multiples(&pool, step);
    if (!multiples || !pool.Matches(*multiples, magnitude.ToString())) return false;
  }
  return true;
}

std::optional<RegexId> NumberTexts(RegexPool* pool, const NumberRange& range) {
  // Without sign: from max(min, 0) to max. With: the mirrored range, from -min down to max(-max,
  // 0).
  RegexId positive = RegexPool::kNothing;
  if (!range.max || !range.max->value.negative) {
    std::optional<NumberBound> min = range.min;
    if (min && (min->value.negative || (min->value.IsZero() && !min->exclusive))) min.reset();
    positive = Magnitudes(pool, min, range.max, range.integer);
  }
  RegexId negative = RegexPool::kNothing;
  if (!range.min || range.min->value.negative) {
    std::optional<NumberBound> low = range.max ? std::optional(Negated(*range.max)) : std::nullopt;
    std::optional<NumberBound> high = range.min ? std::optional(Negated(*range.min)) : std::nullopt;
    if (low && (low->value.negative || (low->value.IsZero() && !low->exclusive))) low.reset();
    negative = Magnitudes(pool, low, high, range.integer);
  }
  for (const Decimal& step : range.multiples_of) {
    const auto multiples = Multiples(pool, step);
    if (!multiples) return std::nullopt;
    positive = pool->And(positive, *multiples);
    negative = pool->And(negative, *multiples);
  }
  return pool->Or(positive, pool->Concat(pool->Byte('-'), negative));
}

}  // namespace lapidary::grammar
