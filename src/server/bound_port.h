// A port of this machine that is taken, though nobody can connect to it yet: found to be free or
// not before what takes long to start.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace lapidary {

class BoundPort {
 public:
  // `host`: a name or an address. `port` 0: any free one. An error says whose port it is, as far as
  // that is known: of another program, or not of this machine.
  static Result<std::unique_ptr<BoundPort>> Bind(const std::string& host, int port);
  ~BoundPort();
  BoundPort(const BoundPort&) = delete;
  BoundPort& operator=(const BoundPort&) = delete;

  int port() const { return port_; }
  bool is_ipv6() const { return is_ipv6_; }
  bool is_loopback() const { return is_loopback_; }
  // The socket, which is the caller's from then on.
  int Release();

 private:
  BoundPort() = default;

  int socket_ = -1;
  int port_ = 0;
  bool is_ipv6_ = false;
  bool is_loopback_ = false;
};

}  // namespace lapidary
