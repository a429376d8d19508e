// One decoder for each kind of image file; DecodeImage (decode_image.h) chooses.
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

// An error when a side is zero or there are too many pixels.
Status CheckImageSize(int64_t height, int64_t width, const ImageLimits& limits);
// Room for the pixels, once they are checked.
Result<Image> AllocateImage(int64_t height, int64_t width, const ImageLimits& limits);

Result<ImageFacts> ReadJpegFacts(std::string_view file, const ImageLimits& limits);
Result<ImageFacts> ReadPngFacts(std::string_view file, const ImageLimits& limits);
Result<ImageFacts> ReadWebpFacts(std::string_view file, const ImageLimits& limits);

// Scans of a JPEG file, by its markers; 1 where there is none.
int CountJpegScans(std::string_view file);

Result<DecodedImage> DecodeJpeg(std::string_view file, const ImageLimits& limits);
Result<DecodedImage> DecodePng(std::string_view file, const ImageLimits& limits);
Result<DecodedImage> DecodeWebp(std::string_view file, const ImageLimits& limits);

}  // namespace lapidary
