// /v1/audio/transcriptions in terms of /v1/chat/completions: a form with a file becomes a chat with
// an audio part and what is to be done with it.
#pragma once

#include <string_view>

#include "server/api_error.h"

namespace lapidary {

// Fields: file, model, language, prompt, response_format (json), temperature (default 0), stream.
ApiStatus TranscriptionToChat(std::string_view form, OrderedJson* chat);

}  // namespace lapidary
