// Pictures and sounds among the parts of a message, as clients send them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "towers/encoded_medium.h"

namespace lapidary {

struct MediaPart {
  MediaKind kind = MediaKind::kImage;
  std::string file;         // its bytes, unless it is to be read:
  std::string path;         // of a file:// URL
  std::string url;          // to be fetched
  int max_soft_tokens = 0;  // of an image; 0: the request's, or the default
  std::string where;        // the field it came from
};

bool IsMediaPart(std::string_view type);

// Reads `image_url` ({"url", "detail"} or the URL itself), `input_audio` ({"data", "format"}) and
// `audio_url`. URLs are data: URIs, name files (file:///...) or what is to be fetched (http(s)://).
// `placeholder`: the part that templates know.
ApiStatus ReadMediaPart(const OrderedJson& part, const std::string& where, MediaPart* medium,
                        OrderedJson* placeholder);

}  // namespace lapidary
