// A picture from anywhere: whatever decodes has its pixels, within the limits.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "media/decode_image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const lapidary::ImageLimits limits{.max_bytes = 1 << 20, .max_pixels = 1 << 18};
  const auto image = lapidary::DecodeImage({reinterpret_cast<const char*>(data), size}, limits);
  if (!image.ok()) {
    CHECK(!image.error().message.empty() && image.error().message.size() < 1000);
    return 0;
  }
  CHECK(image->height > 0 && image->width > 0);
  CHECK_LE(int64_t{image->height} * image->width, limits.max_pixels);
  CHECK_EQ(image->rgb.size(), size_t{3} * image->height * image->width);
  return 0;
}
