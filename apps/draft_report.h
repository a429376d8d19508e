// The statistics of speculative decoding in a run, as the commands print them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/engine.h"

namespace lapidary {

// {"rounds", "draft_tokens", "accepted_tokens", "accept_length" (tokens a round), "accepted_at"
// (share of the rounds that accept draft 1, 2, ...), "by_source": {"assistant" or "forced": the
// first three of its rounds}}; null where nothing was drafted.
nlohmann::ordered_json DraftReport(const DraftStats& drafts);

// The same in one line, empty where nothing was drafted.
std::string DraftReportText(const DraftStats& drafts);

}  // namespace lapidary
