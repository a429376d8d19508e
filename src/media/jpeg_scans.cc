#include <algorithm>

#include "media/image_codecs.h"

namespace lapidary {
namespace {

constexpr unsigned kStartOfScan = 0xda;
constexpr unsigned kEndOfImage = 0xd9;
constexpr unsigned kStartOfImage = 0xd8;

// Markers without a length behind them; 0 and FF are none at all, but bytes of data and padding.
bool IsAlone(unsigned marker) {
  return marker <= 0x01 || (marker >= 0xd0 && marker <= kStartOfImage) || marker == 0xff;
}

}  // namespace

// Segments are FF, marker, length of what follows (two bytes, which count). Behind the one that
// begins a scan lie the scan's data, in which FF is followed by 0 or a restart marker. What comes
// between is skipped, as libjpeg does; thumbnails lie inside of segments. Other files may lie
// behind the image's end.
int CountJpegScans(std::string_view file) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(file[at]); };
  int num_scans = 0;
  for (size_t at = file.find('\xff'); at != std::string_view::npos && at + 3 < file.size();
       at = file.find('\xff', at)) {
    const unsigned marker = byte(at + 1);
    if (marker == kEndOfImage) break;
    if (IsAlone(marker)) {
      at += marker == 0xff ? 1 : 2;
      continue;
    }
    if (marker == kStartOfScan) ++num_scans;
    at += 2 + std::max(2, byte(at + 2) << 8 | byte(at + 3));
  }
  return std::max(num_scans, 1);
}

}  // namespace lapidary
