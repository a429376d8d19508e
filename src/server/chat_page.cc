#include "server/chat_page.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <optional>
#include <utility>

#include "base/check.h"
#include "net/curl.h"

namespace lapidary {

// By lapidary_embed_page; the hashes are in hexadecimal.
extern const std::string_view kChatPage;
extern const std::string_view kChatPageSha256;
extern const std::string_view kChatPageStyleSha256;
extern const std::string_view kChatPageScriptSha256;
extern const std::string_view kPreviewPage;  // by lapidary_embed

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

std::vector<std::pair<std::string, std::string>> CommonHeaders(std::string policy) {
  return {{"Content-Security-Policy", std::move(policy)},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Cross-Origin-Resource-Policy", "same-origin"},
          {"Cache-Control", "no-cache"}};  // kept, but asked for again
}

std::string PagePolicy(const std::vector<std::string>& mcp_servers) {
  std::string reachable = "'self'";
  for (const std::string& url : mcp_servers) reachable += " " + url;
  return fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; "
      "media-src data:; connect-src {}; frame-src 'self'; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
      Base64OfHex(kChatPageScriptSha256), Base64OfHex(kChatPageStyleSha256), reachable);
}

// Scripts run in an opaque origin, and can load and reach nothing.
constexpr const char* kPreviewPolicy =
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; media-src data:; font-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'";

// A policy separates its parts with ; and , and its sources with spaces; it knows no user, no query
// and no address of IPv6.
bool CanStandInPolicy(const std::string& text) {
  constexpr std::string_view kMarks = "-._~:/%";
  const bool is_plain = std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           kMarks.find(c) != std::string_view::npos;
  });
  if (!is_plain) return false;
  const std::optional<net::Url> url = net::Url::Parse(text);
  return url && (url->Scheme() == "http" || url->Scheme() == "https") && !url->Host().empty();
}

}  // namespace

Status CheckMcpServers(const std::vector<std::string>& urls) {
  for (const std::string& url : urls) {
    if (CanStandInPolicy(url)) continue;
    return MakeError(
        "--mcp-servers '{}': an address looks like http://127.0.0.1:9000/mcp, without user, query "
        "or IPv6 address",
        url);
  }
  return {};
}

ChatPage::ChatPage(const std::vector<std::string>& mcp_servers)
    : policy_(PagePolicy(mcp_servers)),
      // The policy is kept with the page, so another policy makes another page.
      etag_(fmt::format("\"{}-{:x}\"", kChatPageSha256.substr(0, 32),
                        std::hash<std::string>()(policy_))) {}

HttpResponse ChatPage::Respond(std::string_view if_none_match) const {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.headers = CommonHeaders(policy_);
  response.headers.emplace_back("X-Frame-Options", "DENY");
  response.headers.emplace_back("ETag", etag_);
  if (if_none_match.find(etag_) != std::string_view::npos || if_none_match == "*") {
    response.status = 304;
  } else {
    response.body = kChatPage;
  }
  return response;
}

HttpResponse PreviewResponse() {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.headers = CommonHeaders(kPreviewPolicy);
  response.headers.emplace_back("X-Frame-Options", "SAMEORIGIN");
  response.body = kPreviewPage;
  return response;
}

}  // namespace lapidary
