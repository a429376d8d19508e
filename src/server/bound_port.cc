#include "server/bound_port.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <utility>

namespace lapidary {

namespace asio = boost::asio;
using asio::ip::tcp;

Result<std::unique_ptr<BoundPort>> BoundPort::Bind(const std::string& host, int port) {
  boost::system::error_code error;
  asio::io_context io(1);
  const auto found =
      tcp::resolver(io).resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error) return MakeError("--host {}: {}", host, error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (error) {
    const char* hint = error == asio::error::address_in_use ? "; --port names another one"
                       : error == boost::system::errc::address_not_available
                           ? "; --host must be an address of this machine, such as 0.0.0.0"
                           : "";
    return MakeError("cannot listen on {} port {}: {}{}", host, port, error.message(), hint);
  }
  std::unique_ptr<BoundPort> bound(new BoundPort());
  bound->port_ = acceptor.local_endpoint().port();
  bound->is_ipv6_ = endpoint.protocol() == tcp::v6();
  bound->is_loopback_ = endpoint.address().is_loopback();
  bound->socket_ = acceptor.release();
  return bound;
}

BoundPort::~BoundPort() {
  if (socket_ >= 0) close(socket_);
}

int BoundPort::Release() { return std::exchange(socket_, -1); }

}  // namespace lapidary
