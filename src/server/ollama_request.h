// Ollama's /api/chat and /api/generate in terms of /v1/chat/completions: the request translated, so
// that one parser reads both.
#pragma once

#include "server/api_error.h"

namespace lapidary {

enum class OllamaKind { kChat, kGenerate };

ApiStatus OllamaToChat(OllamaKind kind, const OrderedJson& body, OrderedJson* chat);

// Whether nothing is asked: the client wants the model loaded, as it is here.
bool IsOllamaLoad(OllamaKind kind, const OrderedJson& body);

}  // namespace lapidary
