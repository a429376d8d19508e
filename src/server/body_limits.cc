#include "server/body_limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace lapidary {

size_t CountMediaBytes(std::string_view json) {
  size_t num_bytes = 0;
  std::string_view last_string;
  std::string_view key;  // of the value that comes next, if it has one
  for (size_t pos = 0; pos < json.size(); ++pos) {
    const char c = json[pos];
    if (c == ':') key = last_string;
    if (c == '{' || c == '[' || c == ',') key = {};
    if (c != '"') continue;
    const size_t begin = ++pos;
    while (pos < json.size() && json[pos] != '"') pos += json[pos] == '\\' ? 2 : 1;
    last_string = json.substr(begin, std::min(pos, json.size()) - begin);
    const bool is_medium = key == "data" || (!key.empty() && last_string.starts_with("data:"));
    if (is_medium) num_bytes += last_string.size();
    key = {};
  }
  return num_bytes;
}

ApiStatus CheckBodySize(std::string_view json, const BodyLimits& limits) {
  if (json.size() <= limits.max_text_bytes) return {};
  const size_t num_media_bytes = limits.max_media_bytes > 0 ? CountMediaBytes(json) : 0;
  if (num_media_bytes > limits.max_media_bytes) {
    return ApiError{413, fmt::format("images and sounds may have {} bytes as they are sent, these "
                                     "have {} (--max-media-bytes of the server)",
                                     limits.max_media_bytes, num_media_bytes)};
  }
  if (json.size() - num_media_bytes <= limits.max_text_bytes) return {};
  return ApiError{413, fmt::format("the body exceeds {} bytes{}", limits.max_text_bytes,
                                   num_media_bytes > 0 ? " beside its images and sounds" : "")};
}

}  // namespace lapidary
