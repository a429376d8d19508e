#include "media/decode_image.h"

#include "media/image_codecs.h"

namespace lapidary {
namespace {

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kJpegSignature = "\xff\xd8\xff";

bool IsWebp(std::string_view file) {
  return file.starts_with("RIFF") && file.size() >= 12 && file.substr(8, 4) == "WEBP";
}

Result<DecodedImage> DecodeByKind(std::string_view file, const ImageLimits& limits) {
  if (file.starts_with(kJpegSignature)) return DecodeJpeg(file, limits);
  if (file.starts_with(kPngSignature)) return DecodePng(file, limits);
  if (IsWebp(file)) return DecodeWebp(file, limits);
  return MakeError("the image is neither JPEG nor PNG nor WebP");
}

}  // namespace

Result<Image> AllocateImage(int64_t height, int64_t width, const ImageLimits& limits) {
  if (height <= 0 || width <= 0) return MakeError("the image has no pixels");
  if (height > limits.max_pixels / width) {
    return MakeError("the image has {} x {} pixels; at most {} are taken", height, width,
                     limits.max_pixels);
  }
  Image image{static_cast<int>(height), static_cast<int>(width), {}};
  image.rgb.resize(size_t{3} * height * width);
  return image;
}

Result<Image> DecodeImage(std::string_view file, const ImageLimits& limits) {
  if (static_cast<int64_t>(file.size()) > limits.max_bytes) {
    return MakeError("the image has {} bytes; at most {} are taken", file.size(), limits.max_bytes);
  }
  ASSIGN_OR_RETURN(DecodedImage decoded, DecodeByKind(file, limits));
  return ApplyOrientation(std::move(decoded.image), decoded.orientation);
}

}  // namespace lapidary
