// /v1/audio/transcriptions in terms of /v1/chat/completions: a form with a file becomes a chat with
// an audio part and what is to be done with it.
#pragma once

#include <string_view>

#include "server/api_error.h"
#include "server/transcription_format.h"

namespace lapidary {

// Fields: file, model, language, prompt, response_format, timestamp_granularities[], temperature
// (default 0), stream. `body`: {"chat", "language", "response_format"}.
ApiStatus TranscriptionToChat(std::string_view form, OrderedJson* body);

// Of a body's response_format.
TranscriptionKind TranscriptionKindOf(const OrderedJson& body);

}  // namespace lapidary
