// Which web pages may use the server through their visitors' browsers.
//
// A browser lets any page send requests anywhere, to a server on the visitor's own machine too. It
// names the page's origin in every request that can do something; a page from elsewhere is refused.
// A page whose name was made to resolve to 127.0.0.1 (DNS rebinding) is of the same origin, but its
// requests carry that name as Host: a server on loopback answers only to names of this machine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace lapidary {

class OriginCheck {
 public:
  // `allowed`: further origins, "https://app.example"; "*": any. Where there is one, its host is
  // accepted as Host as well: that is how a proxy's own name gets through. `own_name`: what the
  // server was told to listen on. `hosts`: names it answers to beside those of its own machine;
  // without any, a server that is not on loopback answers to every name.
  OriginCheck(std::vector<std::string> allowed, std::string_view own_name, bool is_on_loopback,
              std::vector<std::string> hosts = {});

  // Both headers as sent; empty when there was none, which no browser does.
  ApiStatus Check(std::string_view host, std::string_view origin) const;

  // The value of Access-Control-Allow-Origin; empty: no such header.
  std::string CorsOrigin(std::string_view origin) const;

 private:
  bool IsAllowed(std::string_view origin) const;
  bool IsOurHost(std::string_view host) const;

  std::vector<std::string> allowed_;
  bool allows_any_ = false;
  std::string own_name_;
  std::vector<std::string> hosts_;  // in lower case
  bool answers_to_any_;
};

// "https://app.example:8443" and nothing behind it, "null" or "*": what a browser may send and what
// --allowed-origins may hold.
bool IsOrigin(std::string_view text);

}  // namespace lapidary
