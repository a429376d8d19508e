#include "server/request_media.h"

#include <algorithm>

#include "media/decode_image.h"
#include "server/fetch_media.h"
#include "server/local_media.h"

namespace lapidary {
namespace {

ApiStatus CheckCount(int64_t count, int limit, const std::string& problem, const char* kind,
                     const char* plural) {
  if (count <= limit) return {};
  if (limit == 0 && !problem.empty()) {
    return BadRequest("messages", "this model takes no {} here: {}", plural, problem);
  }
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
  const auto check = [&](int64_t number, int limit, const char* kind, const char* plural) {
    return CheckCount(number, limit, limits.problem, kind, plural);
  };
  RETURN_IF_API_ERROR(check(count(MediaKind::kImage), limits.images, "image", "images"));
  RETURN_IF_API_ERROR(check(count(MediaKind::kAudio), limits.audio, "audio", "audio"));
  return check(std::ssize(media.video_texts), limits.videos, "video", "videos");
}

}  // namespace

ApiStatus LoadRequestMedia(const Session& session, ByteLease* memory, RequestMedia* media) {
  if (media->empty()) return {};
  const MediaLimits& limits = session.media_limits();
  RETURN_IF_API_ERROR(CheckCounts(*media, limits));
  for (MediaPart& part : media->parts) {
    if (!part.path.empty()) {
      RETURN_IF_API_ERROR(ReadLocalMedia(limits.local_files, part, &part.file));
    } else if (!part.url.empty()) {
      RETURN_IF_API_ERROR(FetchMedia(limits.hosts, part, &part.file));
    } else {
      continue;  // It came with the request, whose memory is taken.
    }
    if (memory != nullptr && !memory->Grow(part.file.size())) {
      return memory->Refusal(part.file.size());
    }
  }
  return {};
}

ApiStatus MeasureRequestMedia(const RequestMedia& media, const RequestMediaLimits& limits,
                              std::vector<int64_t>* pixels) {
  int64_t num_pixels = 0;
  for (const MediaPart& part : media.parts) {
    if (part.kind != MediaKind::kImage) {
      pixels->push_back(0);
      continue;
    }
    const auto facts = ReadImageFacts(part.file);
    if (!facts.ok()) return BadRequest(part.where, "{}: {}", part.where, facts.error().message);
    pixels->push_back(facts->scanned_pixels());
    num_pixels += pixels->back();
    if (num_pixels <= limits.max_pixels) continue;
    ApiError error =
        BadRequest(part.where,
                   "{}: the images up to this one have {} pixels, each counted once for every scan "
                   "of its file; a request may have {} (--max-media-pixels of the server): send "
                   "smaller or fewer images",
                   part.where, num_pixels, limits.max_pixels);
    error.status = 413;
    error.code = "too_many_pixels";
    return error;
  }
  return {};
}

ApiStatus EncodeRequestMedium(const Session& session, const MediaPart& part, int max_soft_tokens,
                              EncodedMedium* encoded) {
  MediaEncoder& encoder = *session.media_encoder();
  const int budget = part.max_soft_tokens > 0 ? part.max_soft_tokens : max_soft_tokens;
  auto medium = part.kind == MediaKind::kImage ? encoder.EncodeImageFile(part.file, budget)
                                               : encoder.EncodeAudioFile(part.file);
  if (!medium.ok()) return BadRequest(part.where, "{}: {}", part.where, medium.error().message);
  *encoded = std::move(*medium);
  return {};
}

ApiStatus PlaceRequestMedia(const Session& session, const RequestMedia& media,
                            std::vector<EncodedMedium> encoded, ChatPrompt* prompt,
                            PlacedMedia* placed) {
  if (media.empty()) return {};
  CHECK_EQ(encoded.size(), media.parts.size());
  PromptMedia named;
  for (size_t idx = 0; idx < encoded.size(); ++idx) {
    const MediaPart& part = media.parts[idx];
    (part.kind == MediaKind::kImage ? named.images : named.audio)
        .push_back({part.where, std::move(encoded[idx]), part.is_video_frame});
  }
  auto places = ExpandAndPlaceMedia(session.plan(), *session.text().tokenizer, named, prompt);
  if (!places.ok()) return BadRequest("messages", "{}", places.error().message);
  *placed = std::move(*places);
  placed->media.clear();  // They end here.
  return {};
}

ApiStatus EncodeAndPlaceMedia(const Session& session, RequestMedia media, int max_soft_tokens,
                              ChatPrompt* prompt, PlacedMedia* placed) {
  RETURN_IF_API_ERROR(LoadRequestMedia(session, /*memory=*/nullptr, &media));
  std::vector<EncodedMedium> encoded(media.parts.size());
  for (size_t idx = 0; idx < encoded.size(); ++idx) {
    RETURN_IF_API_ERROR(
        EncodeRequestMedium(session, media.parts[idx], max_soft_tokens, &encoded[idx]));
  }
  return PlaceRequestMedia(session, media, std::move(encoded), prompt, placed);
}

}  // namespace lapidary
