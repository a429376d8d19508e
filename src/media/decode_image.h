// JPEG, PNG and WebP files from outside, decoded to 8-bit RGB.
//
// Alpha is dropped, not blended; grey is repeated; a palette is looked up and its transparency
// ignored; EXIF orientation is applied, as transformers' load_image does. Of 16-bit channels the
// high byte is taken. The size is checked before memory for pixels is taken.
//
// Images are decoded at their full size, however much smaller a tower wants them: libjpeg's
// scaled decoding gives other pixels than decoding and then resizing, which is what the reference
// does. What is too large to be decoded so is refused.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "media/image.h"

namespace lapidary {

struct ImageLimits {
  int64_t max_bytes = int64_t{64} << 20;   // of the file
  int64_t max_pixels = int64_t{64} << 20;  // height * width
  int max_scans = 100;                     // of a JPEG
};

// What a file's headers say, read without decoding it.
struct ImageFacts {
  int64_t height = 0;  // as stored
  int64_t width = 0;
  // How often decoding goes over all pixels: once for each scan of a JPEG (a progressive one has
  // about ten), twice for an interlaced PNG.
  int num_scans = 1;

  // What decoding costs.
  int64_t scanned_pixels() const { return height * width * num_scans; }
};

// Refuses what DecodeImage would refuse for its size or its scans.
Result<ImageFacts> ReadImageFacts(std::string_view file, const ImageLimits& limits = {});

Result<Image> DecodeImage(std::string_view file, const ImageLimits& limits = {});

}  // namespace lapidary
