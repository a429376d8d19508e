// Bicubic resizing with antialias in integers, bit for bit what torchvision makes of 8-bit images
// on the CPU: width first, then height, 8 bits in between; an axis that keeps its size is skipped.
#pragma once

#include "media/image.h"
#include "media/image_size.h"

namespace lapidary {

Image ResizeBicubic(Image image, ImageSize target);

}  // namespace lapidary
