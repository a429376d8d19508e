// Writes the heads of HTTP responses, and the frames of their bodies.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http_types.h"

namespace lapidary {

struct HttpHeadOptions {
  bool keep_alive = true;
  bool chunked = false;                  // instead of a length
  std::optional<size_t> content_length;  // neither: the body ends with the connection
  std::string allowed_origin;            // empty: no CORS headers
  std::string request_id;                // empty: no such header
};

std::string WriteHead(const HttpResponse& response, const HttpHeadOptions& options);

// One server-sent event, "data: ...\n\n", behind "event: NAME\n" if it has a name.
std::string WriteEvent(std::string_view name, std::string_view data);

// A chunk of a chunked body; the empty one ends it.
std::string WriteChunk(std::string_view data);

}  // namespace lapidary
