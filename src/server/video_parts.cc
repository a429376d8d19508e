#include "server/video_parts.h"

#include <optional>
#include <string_view>
#include <vector>

#include "base/base64.h"
#include "front/video_text.h"

namespace lapidary {
namespace {

constexpr double kDefaultFps = 24.0;  // what the reference takes where nobody says
constexpr double kMaxFps = 1000.0;
constexpr double kMaxSeconds = 360'000.0;  // 100 hours
constexpr std::string_view kFramesUri = "data:video/jpeg;base64,";

// A number in [min, max] where there is one.
ApiStatus ReadNumber(const OrderedJson& object, const char* name, const std::string& where,
                     double min, double max, std::optional<double>* number) {
  const OrderedJson* value = FindPartField(object, name);
  if (value == nullptr) return {};
  const double found = value->is_number() ? value->get<double>() : -1.0;
  if (!(found >= min && found <= max)) {
    const std::string field = fmt::format("{}.{}", where, name);
    return BadRequest(field, "{} must be a number from {} to {}", field, min, max);
  }
  *number = found;
  return {};
}

ApiStatus ReadFps(const OrderedJson& object, const std::string& where, double* fps) {
  std::optional<double> given;
  RETURN_IF_API_ERROR(ReadNumber(object, "fps", where, 0.001, kMaxFps, &given));
  *fps = given.value_or(*fps);
  return {};
}

MediaPart MakeFrame(std::string where) {
  MediaPart frame;
  frame.kind = MediaKind::kImage;
  frame.max_soft_tokens = kVideoFrameSoftTokens;
  frame.is_video_frame = true;
  frame.where = std::move(where);
  return frame;
}

// The times of all frames; empty where none says its own.
ApiStatus ReadTimes(const OrderedJson& frames, const std::string& where,
                    std::vector<double>* seconds) {
  for (size_t frame_idx = 0; frame_idx < frames.size(); ++frame_idx) {
    const std::string at = fmt::format("{}[{}]", where, frame_idx);
    std::optional<double> given;
    RETURN_IF_API_ERROR(ReadNumber(frames[frame_idx], "timestamp", at, 0.0, kMaxSeconds, &given));
    if (given.has_value() != (seconds->size() == frame_idx) && frame_idx > 0) {
      return BadRequest(at, "{}: either all frames of a video have a timestamp or none has", at);
    }
    if (!given) continue;
    if (!seconds->empty() && *given < seconds->back()) {
      return BadRequest(at, "{}: the timestamps of a video must not go back", at);
    }
    seconds->push_back(*given);
  }
  return {};
}

ApiStatus ReadFrameList(const OrderedJson& part, const std::string& where, RequestMedia* media) {
  const OrderedJson* frames = FindPartField(part, "video");
  const std::string field = where + ".video";
  if (frames == nullptr || !frames->is_array() || frames->empty()) {
    return BadRequest(
        field, "{} must be a list of frames: images' URLs, or {{\"url\", \"timestamp\"}}", field);
  }
  double fps = kDefaultFps;
  RETURN_IF_API_ERROR(ReadFps(part, where, &fps));
  std::vector<double> seconds;
  RETURN_IF_API_ERROR(ReadTimes(*frames, field, &seconds));
  std::vector<double> shown_seconds;
  for (const int frame_idx : ChooseVideoFrames(static_cast<int>(frames->size()))) {
    const OrderedJson& frame = (*frames)[frame_idx];
    const std::string at = fmt::format("{}[{}]", field, frame_idx);
    const OrderedJson* url = frame.is_string() ? &frame : FindPartField(frame, "url");
    if (url == nullptr || !url->is_string()) {
      return BadRequest(at, "{} must be an image's URL or an object with a string \"url\"", at);
    }
    MediaPart& shown = media->parts.emplace_back(MakeFrame(at));
    RETURN_IF_API_ERROR(ReadMediaUrl(url->get_ref<const std::string&>(), at, &shown));
    shown_seconds.push_back(seconds.empty() ? frame_idx / fps : seconds[frame_idx]);
  }
  media->video_texts.push_back(VideoText(shown_seconds));
  return {};
}

ApiStatus ReadFramesUri(const OrderedJson& part, const std::string& where, RequestMedia* media) {
  std::string url;
  RETURN_IF_API_ERROR(FindMediaUrl(part, "video_url", where, &url));
  const std::string field = where + ".video_url.url";
  if (!url.starts_with(kFramesUri)) {
    return BadRequest(field,
                      "{}: video files are not decoded here; send their frames as {{\"type\": "
                      "\"video\", \"video\": [{{\"url\": IMAGE, \"timestamp\": SECONDS}}, ...]}}",
                      field);
  }
  double fps = kDefaultFps;
  RETURN_IF_API_ERROR(ReadFps(part["video_url"], where + ".video_url", &fps));
  std::vector<std::string_view> frames;
  for (std::string_view rest = std::string_view(url).substr(kFramesUri.size());;) {
    const size_t comma = rest.find(',');
    frames.push_back(rest.substr(0, comma));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  std::vector<double> shown_seconds;
  for (const int frame_idx : ChooseVideoFrames(static_cast<int>(frames.size()))) {
    const std::string at = fmt::format("{}, frame {}", field, frame_idx);
    auto file = DecodeBase64(frames[frame_idx]);
    if (!file.ok()) return BadRequest(field, "{}: {}", at, file.error().message);
    media->parts.emplace_back(MakeFrame(at)).file = std::move(*file);
    shown_seconds.push_back(frame_idx / fps);
  }
  media->video_texts.push_back(VideoText(shown_seconds));
  return {};
}

}  // namespace

ApiStatus ReadVideoPart(const OrderedJson& part, const std::string& where, RequestMedia* media) {
  if (part["type"] == "video") return ReadFrameList(part, where, media);
  return ReadFramesUri(part, where, media);
}

}  // namespace lapidary
