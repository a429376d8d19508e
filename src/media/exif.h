// The orientation of a camera, the only EXIF field that changes an image.
#pragma once

#include <string_view>

#include "media/image.h"

namespace lapidary {

// The stored image is mirrored (left to right), then turned clockwise.
struct Orientation {
  bool mirrored = false;
  int quarter_turns = 0;  // 0..3
};

// Of EXIF data (a TIFF header, perhaps behind "Exif\0\0"); upright where they say nothing, or
// nothing that makes sense.
Orientation ReadOrientation(std::string_view exif);

Image ApplyOrientation(Image image, Orientation orientation);

}  // namespace lapidary
