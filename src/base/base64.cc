#include "base/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace lapidary {
namespace {

constexpr int8_t kNoDigit = -1;
constexpr int8_t kBlank = -2;

constexpr std::array<int8_t, 256> kDigits = [] {
  std::array<int8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (int idx = 0; idx < 26; ++idx) {
    digits['A' + idx] = static_cast<int8_t>(idx);
    digits['a' + idx] = static_cast<int8_t>(26 + idx);
  }
  for (int idx = 0; idx < 10; ++idx) digits['0' + idx] = static_cast<int8_t>(52 + idx);
  digits['+'] = digits['-'] = 62;
  digits['/'] = digits['_'] = 63;
  for (const char blank : {' ', '\n', '\r', '\t'}) digits[blank] = kBlank;
  return digits;
}();

}  // namespace

Result<std::string> DecodeBase64(std::string_view text) {
  while (!text.empty() &&
         (text.back() == '=' || kDigits[static_cast<uint8_t>(text.back())] == kBlank)) {
    text.remove_suffix(1);
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int num_bits = 0;
  for (size_t idx = 0; idx < text.size(); ++idx) {
    const int8_t digit = kDigits[static_cast<uint8_t>(text[idx])];
    if (digit == kBlank) continue;
    if (digit == kNoDigit) return MakeError("character {} is no digit of base64", idx + 1);
    bits = (bits << 6 | static_cast<uint32_t>(digit)) & 0xffffff;
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes.push_back(static_cast<char>(bits >> num_bits & 0xff));
  }
  if (num_bits == 6) return MakeError("base64 ends in the middle of a byte");
  return bytes;
}

std::string EncodeBase64(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t bits = 0;
    for (size_t idx = 0; idx < 3; ++idx) {
      bits = bits << 8 | (idx < count ? static_cast<uint8_t>(bytes[at + idx]) : 0u);
    }
    for (size_t idx = 0; idx < 4; ++idx) {
      text += idx <= count ? kAlphabet[bits >> (18 - 6 * idx) & 63] : '=';
    }
  }
  return text;
}

}  // namespace lapidary
