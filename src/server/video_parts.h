// Videos among the parts of a message: lists of frames. Video files are not decoded: their formats
// are many, their decoders large, and whoever has a file has the means to cut it into frames.
#pragma once

#include <string>

#include "server/api_error.h"
#include "server/media_parts.h"

namespace lapidary {

// {"type": "video", "video": [FRAME, ...], "fps": 2}, each frame an image's URL or {"url",
// "timestamp"} in seconds; or {"type": "video_url", "video_url": {"url", "fps"}} with the URL
// data:video/jpeg;base64,FRAME,FRAME,... Without timestamps frame n is from second n / fps (24).
ApiStatus ReadVideoPart(const OrderedJson& part, const std::string& where, RequestMedia* media);

}  // namespace lapidary
