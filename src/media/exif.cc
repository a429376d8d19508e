#include "media/exif.h"

#include <optional>
#include <utility>

namespace lapidary {
namespace {

constexpr std::string_view kExifPrefix{"Exif\0\0", 6};
constexpr int kOrientationTag = 0x0112;
constexpr int kShortType = 3;

// Unsigned integers of either byte order, within the data.
class TiffReader {
 public:
  explicit TiffReader(std::string_view data) : data_(data) {}

  // Whether there is a TIFF header; sets the byte order.
  bool ReadHeader() {
    if (data_.substr(0, 4) == std::string_view{"II*\0", 4}) return true;
    big_endian_ = true;
    return data_.substr(0, 4) == std::string_view{"MM\0*", 4};
  }
  std::optional<uint32_t> Read(uint64_t offset, int num_bytes) const {
    if (offset + num_bytes > data_.size()) return std::nullopt;
    uint32_t value = 0;
    for (int idx = 0; idx < num_bytes; ++idx) {
      const int place = big_endian_ ? idx : num_bytes - 1 - idx;
      value = value << 8 | static_cast<unsigned char>(data_[offset + place]);
    }
    return value;
  }

 private:
  std::string_view data_;
  bool big_endian_ = false;
};

// The tag's value in the first directory.
std::optional<uint32_t> FindOrientation(std::string_view exif) {
  TiffReader tiff(exif);
  if (!tiff.ReadHeader()) return std::nullopt;
  const auto directory = tiff.Read(4, 4);
  if (!directory) return std::nullopt;
  const auto num_entries = tiff.Read(*directory, 2);
  if (!num_entries) return std::nullopt;
  for (uint32_t entry_idx = 0; entry_idx < *num_entries; ++entry_idx) {
    const uint64_t entry = uint64_t{*directory} + 2 + 12 * uint64_t{entry_idx};
    const auto tag = tiff.Read(entry, 2);
    if (!tag) return std::nullopt;
    if (*tag != kOrientationTag) continue;
    if (tiff.Read(entry + 2, 2) != kShortType) return std::nullopt;
    return tiff.Read(entry + 8, 2);
  }
  return std::nullopt;
}

Image Mirror(Image image) {
  for (int row = 0; row < image.height; ++row) {
    uint8_t* pixels = image.Row(row);
    for (int left = 0, right = image.width - 1; left < right; ++left, --right) {
      for (int channel = 0; channel < 3; ++channel) {
        std::swap(pixels[3 * left + channel], pixels[3 * right + channel]);
      }
    }
  }
  return image;
}

Image TurnClockwise(const Image& image) {
  Image turned{image.width, image.height, std::vector<uint8_t>(image.rgb.size())};
  for (int row = 0; row < image.height; ++row) {
    const uint8_t* pixels = image.Row(row);
    for (int column = 0; column < image.width; ++column) {
      uint8_t* target = turned.Row(column) + 3 * (image.height - 1 - row);
      for (int channel = 0; channel < 3; ++channel) target[channel] = pixels[3 * column + channel];
    }
  }
  return turned;
}

}  // namespace

Orientation ReadOrientation(std::string_view exif) {
  if (exif.starts_with(kExifPrefix)) exif.remove_prefix(kExifPrefix.size());
  switch (FindOrientation(exif).value_or(1)) {
    case 2:
      return {.mirrored = true};
    case 3:
      return {.quarter_turns = 2};
    case 4:
      return {.mirrored = true, .quarter_turns = 2};
    case 5:
      return {.mirrored = true, .quarter_turns = 3};
    case 6:
      return {.quarter_turns = 1};
    case 7:
      return {.mirrored = true, .quarter_turns = 1};
    case 8:
      return {.quarter_turns = 3};
    default:
      return {};
  }
}

Image ApplyOrientation(Image image, Orientation orientation) {
  if (orientation.mirrored) image = Mirror(std::move(image));
  for (int turn = 0; turn < orientation.quarter_turns; ++turn) image = TurnClockwise(image);
  return image;
}

}  // namespace lapidary
