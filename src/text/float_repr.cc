#include "text/float_repr.h"

#include <charconv>
#include <cmath>
#include <string_view>

namespace lapidary {

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, end - buffer);
  const size_t exponent_at = text.find('e');
  int exponent = 0;
  const char* exponent_text = text.data() + exponent_at + 1;
  std::from_chars(exponent_text + (*exponent_text == '+'), end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string fixed(
      buffer, std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

}  // namespace lapidary
