#include "media/decode_image.h"

#include "media/image_codecs.h"

namespace lapidary {
namespace {

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kJpegSignature = "\xff\xd8\xff";

bool IsWebp(std::string_view file) {
  return file.starts_with("RIFF") && file.size() >= 12 && file.substr(8, 4) == "WEBP";
}

struct Codec {
  Result<ImageFacts> (*read_facts)(std::string_view file, const ImageLimits& limits);
  Result<DecodedImage> (*decode)(std::string_view file, const ImageLimits& limits);
};

Result<Codec> FindCodec(std::string_view file, const ImageLimits& limits) {
  if (static_cast<int64_t>(file.size()) > limits.max_bytes) {
    return MakeError("the image has {} bytes; at most {} are taken", file.size(), limits.max_bytes);
  }
  if (file.starts_with(kJpegSignature)) return Codec{&ReadJpegFacts, &DecodeJpeg};
  if (file.starts_with(kPngSignature)) return Codec{&ReadPngFacts, &DecodePng};
  if (IsWebp(file)) return Codec{&ReadWebpFacts, &DecodeWebp};
  return MakeError("the image is neither JPEG nor PNG nor WebP");
}

}  // namespace

Status CheckImageSize(int64_t height, int64_t width, const ImageLimits& limits) {
  if (height <= 0 || width <= 0) return MakeError("the image has no pixels");
  if (height > limits.max_pixels / width) {
    return MakeError("the image has {} x {} pixels; at most {} are taken", height, width,
                     limits.max_pixels);
  }
  return {};
}

Result<Image> AllocateImage(int64_t height, int64_t width, const ImageLimits& limits) {
  RETURN_IF_ERROR(CheckImageSize(height, width, limits));
  Image image{static_cast<int>(height), static_cast<int>(width), {}};
  image.rgb.resize(size_t{3} * height * width);
  return image;
}

Result<ImageFacts> ReadImageFacts(std::string_view file, const ImageLimits& limits) {
  ASSIGN_OR_RETURN(const Codec codec, FindCodec(file, limits));
  ASSIGN_OR_RETURN(const ImageFacts facts, codec.read_facts(file, limits));
  RETURN_IF_ERROR(CheckImageSize(facts.height, facts.width, limits));
  return facts;
}

Result<Image> DecodeImage(std::string_view file, const ImageLimits& limits) {
  ASSIGN_OR_RETURN(const Codec codec, FindCodec(file, limits));
  ASSIGN_OR_RETURN(DecodedImage decoded, codec.decode(file, limits));
  return ApplyOrientation(std::move(decoded.image), decoded.orientation);
}

}  // namespace lapidary
