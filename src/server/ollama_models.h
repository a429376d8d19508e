// What Ollama's clients ask about models: /api/tags and /api/show.
#pragma once

#include <string>

#include "server/served_model.h"
#include "session/session.h"

namespace lapidary {

// A name as it is served: clients put ":latest" behind one that has no tag.
std::string ServedOllamaName(const ServedModel& model, std::string name);

// `created`: seconds since 1970.
OrderedJson OllamaTags(const Session& session, const ServedModel& model, int64_t created);
OrderedJson OllamaShow(const Session& session, const ServedModel& model, int64_t created);

}  // namespace lapidary
