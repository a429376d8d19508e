// The media of a chat request behind the placeholders of its prompt.
#pragma once

#include <vector>

#include "front/prompt.h"
#include "server/media_parts.h"
#include "session/prompt_media.h"
#include "session/session.h"

namespace lapidary {

// Encodes the parts, in the order of their placeholders, and makes room for them in the prompt.
// `max_soft_tokens`: of an image whose part says nothing. Takes as long as the towers do: not for
// the engine's thread.
ApiStatus PlaceRequestMedia(const Session& session, const RequestMedia& wanted, int max_soft_tokens,
                            ChatPrompt* prompt, PlacedMedia* placed);

}  // namespace lapidary
