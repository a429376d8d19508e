// Pictures, sounds and videos among the parts of a message, as clients send them.
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
  bool is_video_frame = false;
  std::string where;  // the field it came from
};

// Those of a request, in the order of their placeholders.
struct RequestMedia {
  std::vector<MediaPart> parts;          // of a video every frame that is shown
  std::vector<std::string> video_texts;  // of each video, for ChatInput

  bool empty() const { return parts.empty(); }
};

bool IsMediaPart(std::string_view type);

// Reads `image_url` ({"url", "detail"} or the URL itself), `input_audio` ({"data", "format"}),
// `audio_url`, `video` and `video_url` (video_parts.h), and puts them behind `media`. URLs are
// data: URIs, name files (file:///...) or what is to be fetched (http(s)://). `placeholder`: the
// part that templates know.
ApiStatus ReadMediaPart(const OrderedJson& part, const std::string& where, RequestMedia* media,
                        OrderedJson* placeholder);

// What such a URL says of a medium's whereabouts; `where` is the URL's own field.
ApiStatus ReadMediaUrl(const std::string& url, const std::string& where, MediaPart* medium);
// {"url": ...} or the URL itself, which older clients send, under `name` of the part.
ApiStatus FindMediaUrl(const OrderedJson& part, const char* name, const std::string& where,
                       std::string* url);
// nullptr when missing or null.
const OrderedJson* FindPartField(const OrderedJson& object, const char* name);

}  // namespace lapidary
