#include "server/local_media.h"

#include <algorithm>

#include "base/read_file.h"
#include "media/decode_audio.h"
#include "media/decode_image.h"

namespace lapidary {
namespace {

bool LiesUnder(const std::filesystem::path& directory, const std::filesystem::path& path) {
  const auto [end, ignored] =
      std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  return end == directory.end();
}

}  // namespace

ApiStatus ReadLocalMedia(const std::filesystem::path& directory, const MediaPart& part,
                         std::string* file) {
  if (directory.empty()) {
    return BadRequest(part.where, "{}: this server reads no files (--allowed-local-media-path)",
                      part.where);
  }
  std::error_code failed;
  const std::filesystem::path allowed = std::filesystem::canonical(directory, failed);
  std::filesystem::path path;
  if (!failed) path = std::filesystem::canonical(part.path, failed);
  if (!failed && LiesUnder(allowed, path)) {
    const int64_t max_bytes =
        part.kind == MediaKind::kImage ? ImageLimits{}.max_bytes : AudioLimits{}.max_bytes;
    auto bytes = ReadFile(path, static_cast<size_t>(max_bytes));
    if (bytes.ok()) {
      *file = std::move(*bytes);
      return {};
    }
  }
  return BadRequest(part.where, "{}: there is no such file that may be read", part.where);
}

}  // namespace lapidary
