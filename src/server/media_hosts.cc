#include "server/media_hosts.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace lapidary {
namespace {

struct Entry {
  std::string host;
  int port = 0;  // 0: those of http and https
};

std::string Lowered(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lowered;
}

bool IsAddress(std::string host) {
  in6_addr address;
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    return inet_pton(AF_INET6, host.c_str(), &address) == 1;
  }
  return inet_pton(AF_INET, host.c_str(), &address) == 1;
}

bool IsName(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
  });
}

std::optional<Entry> ParseEntry(std::string_view text) {
  Entry entry;
  const size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && text.find(']', colon) == std::string_view::npos) {
    const std::string_view port = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), entry.port);
    if (error != std::errc() || end != port.data() + port.size() || entry.port < 1 ||
        entry.port > 65535) {
      return std::nullopt;
    }
    text = text.substr(0, colon);
  }
  entry.host = Lowered(text);
  if (!IsName(entry.host) && !IsAddress(entry.host)) return std::nullopt;
  return entry;
}

}  // namespace

Status CheckMediaHosts(const std::vector<std::string>& allowed) {
  for (const std::string& text : allowed) {
    if (!ParseEntry(text)) {
      return MakeError(
          "--allowed-media-domains: '{}' is no host such as example.com, example.com:8080 or "
          "10.0.0.7",
          text.substr(0, 80));
    }
  }
  return {};
}

HostAccess FindMediaHost(const std::vector<std::string>& allowed, std::string_view host, int port) {
  const std::string wanted = Lowered(host);
  for (const std::string& text : allowed) {
    const std::optional<Entry> entry = ParseEntry(text);
    if (!entry || entry->host != wanted) continue;
    const bool has_port = entry->port == 0 ? port == 80 || port == 443 : entry->port == port;
    if (has_port) return IsAddress(entry->host) ? HostAccess::kAny : HostAccess::kPublic;
  }
  return HostAccess::kNone;
}

}  // namespace lapidary
