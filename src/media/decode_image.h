// JPEG, PNG and WebP files from outside, decoded to 8-bit RGB.
//
// Alpha is dropped, not blended; grey is repeated; a palette is looked up and its transparency
// ignored; EXIF orientation is applied, as transformers' load_image does. Of 16-bit channels the
// high byte is taken. The size is checked before memory for pixels is taken.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "media/image.h"

namespace lapidary {

struct ImageLimits {
  int64_t max_bytes = int64_t{64} << 20;   // of the file
  int64_t max_pixels = int64_t{64} << 20;  // height * width
};

Result<Image> DecodeImage(std::string_view file, const ImageLimits& limits = {});

}  // namespace lapidary
