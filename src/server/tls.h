// The server's certificate and key, read and checked.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "base/result.h"
#include "server/http_server.h"

namespace lapidary {

// A context for servers: TLS 1.2 and newer. Null without a certificate. An error names the flag and
// the file at fault.
Result<std::shared_ptr<boost::asio::ssl::context>> LoadTls(const TlsOptions& options);

}  // namespace lapidary
