// The media of a chat request behind the placeholders of its prompt: found, measured, encoded, each
// a file at a time, and placed.
#pragma once

#include <vector>

#include "front/prompt.h"
#include "server/byte_budget.h"
#include "server/media_parts.h"
#include "session/prompt_media.h"
#include "session/session.h"

namespace lapidary {

// What one request may cost.
struct RequestMediaLimits {
  // That its pictures are decoded from, each once for every scan (ImageFacts::scanned_pixels).
  int64_t max_pixels = int64_t{256} << 20;
};

// Reads what the parts name elsewhere: as slow as disks and other hosts. What it takes is added to
// `memory`, which may be null. Too many parts are refused before any is read.
ApiStatus LoadRequestMedia(const Session& session, ByteLease* memory, RequestMedia* media);

// What decoding each part costs, by its headers: 0 for sounds, whose decoder has its own limits.
// An error for a file that no decoder takes, and when all of them have too many pixels.
ApiStatus MeasureRequestMedia(const RequestMedia& media, const RequestMediaLimits& limits,
                              std::vector<int64_t>* pixels);

// `max_soft_tokens`: of an image whose part says nothing. Takes as long as decoding and the towers
// do: not for the engine's thread.
ApiStatus EncodeRequestMedium(const Session& session, const MediaPart& part, int max_soft_tokens,
                              EncodedMedium* encoded);

// Makes room for the encoded parts, in the order of their placeholders, in the prompt.
ApiStatus PlaceRequestMedia(const Session& session, const RequestMedia& media,
                            std::vector<EncodedMedium> encoded, ChatPrompt* prompt,
                            PlacedMedia* placed);

// All of this, one part after the other, for callers that wait.
ApiStatus EncodeAndPlaceMedia(const Session& session, RequestMedia media, int max_soft_tokens,
                              ChatPrompt* prompt, PlacedMedia* placed);

}  // namespace lapidary
