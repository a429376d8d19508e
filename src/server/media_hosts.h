// --allowed-media-domains: whom a server fetches images and sounds from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary {

// What may be asked of a host.
enum class HostAccess {
  kNone,
  kPublic,  // at public addresses only: whoever owns the name must not lead us to our own machines
  kAny,     // the entry is an address itself, so it is meant
};

// Entries are "host" for the ports 80 and 443, or "host:port"; hosts are names or addresses, IPv6
// in brackets. Case does not count.
Status CheckMediaHosts(const std::vector<std::string>& allowed);

// `host` as a URL has it, IPv6 in brackets.
HostAccess FindMediaHost(const std::vector<std::string>& allowed, std::string_view host, int port);

}  // namespace lapidary
