#include "server/request_media.h"

#include <algorithm>

#include "server/fetch_media.h"
#include "server/local_media.h"

namespace lapidary {
namespace {

ApiStatus CheckCount(int64_t count, int limit, const char* kind, const char* plural) {
  if (count <= limit) return {};
  if (limit == 0) {
    return BadRequest("messages", "this model takes no {} here (limit-mm-per-prompt is 0)", plural);
  }
  return BadRequest("messages", "{} parts of kind {} are given; a prompt takes {} at most", count,
                    kind, limit);
}

ApiStatus CheckCounts(const RequestMedia& media, const MediaLimits& limits) {
  const auto count = [&](MediaKind kind) {
    return std::count_if(media.parts.begin(), media.parts.end(), [&](const MediaPart& part) {
      return part.kind == kind && !part.is_video_frame;
    });
  };
  RETURN_IF_API_ERROR(CheckCount(count(MediaKind::kImage), limits.images, "image", "images"));
  RETURN_IF_API_ERROR(CheckCount(count(MediaKind::kAudio), limits.audio, "audio", "audio"));
  return CheckCount(std::ssize(media.video_texts), limits.videos, "video", "videos");
}

}  // namespace

ApiStatus PlaceRequestMedia(const Session& session, const RequestMedia& wanted, int max_soft_tokens,
                            ChatPrompt* prompt, PlacedMedia* placed) {
  if (wanted.empty()) return {};
  RETURN_IF_API_ERROR(CheckCounts(wanted, session.media_limits()));
  MediaEncoder& encoder = *session.media_encoder();
  PromptMedia media;
  for (const MediaPart& part : wanted.parts) {
    const bool is_image = part.kind == MediaKind::kImage;
    const int budget = part.max_soft_tokens > 0 ? part.max_soft_tokens : max_soft_tokens;
    std::string found;
    if (!part.path.empty()) {
      RETURN_IF_API_ERROR(ReadLocalMedia(session.media_limits().local_files, part, &found));
    } else if (!part.url.empty()) {
      RETURN_IF_API_ERROR(FetchMedia(session.media_limits().hosts, part, &found));
    }
    const std::string& file = part.path.empty() && part.url.empty() ? part.file : found;
    auto medium = is_image ? encoder.EncodeImageFile(file, budget) : encoder.EncodeAudioFile(file);
    if (!medium.ok()) return BadRequest(part.where, "{}: {}", part.where, medium.error().message);
    (is_image ? media.images : media.audio)
        .push_back({part.where, std::move(*medium), part.is_video_frame});
  }
  auto expanded = ExpandPlaceholders(session.plan(), prompt->ids, media);
  if (!expanded.ok()) return BadRequest("messages", "{}", expanded.error().message);
  prompt->ids = std::move(*expanded);
  auto places = PlaceMedia(session.plan(), prompt->ids, media);
  if (!places.ok()) return BadRequest("messages", "{}", places.error().message);
  *placed = std::move(*places);
  placed->media.clear();  // They end here.
  prompt->cache_points = ChatCachePoints(*session.text().tokenizer, prompt->ids);
  return {};
}

}  // namespace lapidary
