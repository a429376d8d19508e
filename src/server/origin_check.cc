#include "server/origin_check.h"

#include <algorithm>
#include <cctype>

namespace lapidary {
namespace {

constexpr std::string_view kSchemeEnd = "://";

std::string ToLower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// "host:port" of an origin in lower case, without the scheme's own port; empty for "null".
std::string AuthorityOf(std::string_view origin) {
  const size_t scheme_end = origin.find(kSchemeEnd);
  if (scheme_end == std::string_view::npos) return "";
  const std::string scheme = ToLower(origin.substr(0, scheme_end));
  std::string authority = ToLower(origin.substr(scheme_end + kSchemeEnd.size()));
  const std::string_view default_port = scheme == "https" ? ":443" : ":80";
  if (authority.ends_with(default_port)) authority.resize(authority.size() - default_port.size());
  return authority;
}

// A Host header may name the default port of a scheme it does not tell.
bool SameAuthority(std::string_view origin, std::string_view host) {
  const std::string_view scheme = origin.substr(0, origin.find(kSchemeEnd));
  const std::string authority = AuthorityOf(origin);
  return !authority.empty() && authority == AuthorityOf(fmt::format("{}://{}", scheme, host));
}

// The name or address in front of the port, in lower case; IPv6 keeps its brackets.
std::string NameOf(std::string_view authority) {
  const size_t search_from = authority.starts_with('[') ? authority.find(']') : 0;
  if (search_from == std::string_view::npos) return "";
  return ToLower(authority.substr(0, authority.find(':', search_from)));
}

bool IsDecimal(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

// 127.x.y.z, all of it numbers: "127.0.0.1.evil.example" is a name like any other.
bool IsLoopbackAddress(std::string_view name) {
  if (!name.starts_with("127.")) return false;
  int num_parts = 0;
  for (size_t begin = 0; begin <= name.size(); ++num_parts) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (end - begin > 3 || !IsDecimal(name.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return num_parts == 4;
}

// Names that browsers resolve by themselves, never by asking a server.
bool IsLoopbackName(std::string_view name) {
  return name == "localhost" || name.ends_with(".localhost") || name == "[::1]" ||
         IsLoopbackAddress(name);
}

}  // namespace

bool IsOrigin(std::string_view text) {
  if (text == "*" || text == "null") return true;
  const size_t scheme_end = text.find(kSchemeEnd);
  if (scheme_end == std::string_view::npos || scheme_end == 0) return false;
  const std::string_view authority = text.substr(scheme_end + kSchemeEnd.size());
  return !authority.empty() && authority.find_first_of("/?#@* ") == std::string_view::npos;
}

OriginCheck::OriginCheck(std::vector<std::string> allowed, std::string_view own_name,
                         bool is_on_loopback, std::vector<std::string> hosts)
    : allowed_(std::move(allowed)),
      allows_any_(std::find(allowed_.begin(), allowed_.end(), "*") != allowed_.end()),
      own_name_(ToLower(own_name)),
      answers_to_any_(!is_on_loopback && hosts.empty()) {
  for (const std::string& host : hosts) {
    if (host == "*") answers_to_any_ = true;
    hosts_.push_back(ToLower(host));
  }
}

bool OriginCheck::IsAllowed(std::string_view origin) const {
  return allows_any_ || std::find(allowed_.begin(), allowed_.end(), origin) != allowed_.end();
}

bool OriginCheck::IsOurHost(std::string_view host) const {
  if (host.empty() || allows_any_ || answers_to_any_) return true;
  const std::string name = NameOf(host);
  if (name.empty()) return false;
  return IsLoopbackName(name) || name == own_name_ ||
         std::find(hosts_.begin(), hosts_.end(), name) != hosts_.end() ||
         std::any_of(allowed_.begin(), allowed_.end(), [&](const std::string& origin) {
           return NameOf(AuthorityOf(origin)) == name;
         });
}

ApiStatus OriginCheck::Check(std::string_view host, std::string_view origin) const {
  if (!IsOurHost(host)) {
    ApiError error{403, fmt::format("this server answers only to names of its own machine, not to "
                                    "'{}'; --allowed-hosts NAME lets a name in",
                                    host)};
    error.code = "host_not_allowed";
    return error;
  }
  if (origin.empty() || IsAllowed(origin) || SameAuthority(origin, host)) return {};
  ApiError error{403, fmt::format("a web page from '{}' may not use this server; "
                                  "--allowed-origins lets it",
                                  origin)};
  error.code = "origin_not_allowed";
  return error;
}

std::string OriginCheck::CorsOrigin(std::string_view origin) const {
  if (allows_any_) return "*";
  return !origin.empty() && IsAllowed(origin) ? std::string(origin) : "";
}

}  // namespace lapidary
