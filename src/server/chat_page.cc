#include "server/chat_page.h"

#include "base/check.h"

namespace lapidary {

// By lapidary_embed_page; the hashes are in hexadecimal.
extern const std::string_view kChatPage;
extern const std::string_view kChatPageSha256;
extern const std::string_view kChatPageStyleSha256;
extern const std::string_view kChatPageScriptSha256;

namespace {

// A SHA-256 as Content-Security-Policy wants it: base64 of its 32 bytes.
std::string Base64OfHex(std::string_view hex) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string base64;
  // Three hexadecimal digits are two of base64, so six are a group of four.
  for (size_t begin = 0; begin < hex.size(); begin += 3) {
    unsigned bits = 0;
    for (size_t pos = begin; pos < begin + 3; ++pos) {
      const size_t digit = pos < hex.size() ? kHexDigits.find(hex[pos]) : 0;
      CHECK(digit < kHexDigits.size());
      bits = bits << 4 | static_cast<unsigned>(digit);
    }
    base64 += kDigits[bits >> 6];
    if (begin + 2 <= hex.size()) base64 += kDigits[bits & 63];
  }
  while (base64.size() % 4 != 0) base64 += '=';
  return base64;
}

std::string ContentSecurityPolicy() {
  return fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; media-src "
      "data:; "
      "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'",
      Base64OfHex(kChatPageScriptSha256), Base64OfHex(kChatPageStyleSha256));
}

}  // namespace

HttpResponse ChatPageResponse(std::string_view if_none_match) {
  static const std::string policy = ContentSecurityPolicy();
  static const std::string etag = fmt::format("\"{}\"", kChatPageSha256.substr(0, 32));
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.headers = {{"Content-Security-Policy", policy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Cache-Control", "no-cache"},  // kept, but asked for again
                      {"ETag", etag}};
  if (if_none_match.find(etag) != std::string_view::npos || if_none_match == "*") {
    response.status = 304;
  } else {
    response.body = kChatPage;
  }
  return response;
}

}  // namespace lapidary
