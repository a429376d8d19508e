// One decoder of each kind of file; DecodeImage (decode_image.h) is the door.
#pragma once

#include <string_view>

#include "base/result.h"
#include "media/decode_image.h"
#include "media/exif.h"

namespace lapidary {

struct DecodedImage {
  Image image;
  Orientation orientation;
};

// Room for the pixels, or an error when a side is zero or there are too many of them.
Result<Image> AllocateImage(int64_t height, int64_t width, const ImageLimits& limits);

Result<DecodedImage> DecodeJpeg(std::string_view file, const ImageLimits& limits);
Result<DecodedImage> DecodePng(std::string_view file, const ImageLimits& limits);
Result<DecodedImage> DecodeWebp(std::string_view file, const ImageLimits& limits);

}  // namespace lapidary
