#include <webp/decode.h>

#include "media/image_codecs.h"

namespace lapidary {
namespace {

// The data of the first chunk of this name in a RIFF file; empty: there is none.
std::string_view FindChunk(std::string_view file, std::string_view name) {
  constexpr size_t kRiffHeader = 12;
  constexpr size_t kChunkHeader = 8;
  for (size_t at = kRiffHeader; at + kChunkHeader <= file.size();) {
    size_t num_bytes = 0;
    for (int idx = 3; idx >= 0; --idx) {
      num_bytes = num_bytes << 8 | static_cast<unsigned char>(file[at + 4 + idx]);
    }
    const size_t data = at + kChunkHeader;
    if (num_bytes > file.size() - data) return {};
    if (file.substr(at, 4) == name) return file.substr(data, num_bytes);
    at = data + num_bytes + num_bytes % 2;
  }
  return {};
}

}  // namespace

Result<ImageFacts> ReadWebpFacts(std::string_view file, const ImageLimits&) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(reinterpret_cast<const uint8_t*>(file.data()), file.size(), &features) !=
      VP8_STATUS_OK) {
    return MakeError("the WebP image cannot be read: its header is broken");
  }
  if (features.has_animation) {
    return MakeError("the WebP image is animated; send one of its pictures");
  }
  return ImageFacts{features.height, features.width};
}

Result<DecodedImage> DecodeWebp(std::string_view file, const ImageLimits& limits) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(file.data());
  ASSIGN_OR_RETURN(const ImageFacts facts, ReadWebpFacts(file, limits));
  ASSIGN_OR_RETURN(Image image, AllocateImage(facts.height, facts.width, limits));
  if (WebPDecodeRGBInto(bytes, file.size(), image.rgb.data(), image.rgb.size(), 3 * image.width) ==
      nullptr) {
    return MakeError("the WebP image cannot be decoded: its data are broken");
  }
  return DecodedImage{std::move(image), ReadOrientation(FindChunk(file, "EXIF"))};
}

}  // namespace lapidary
