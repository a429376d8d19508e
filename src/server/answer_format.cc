#include "server/answer_format.h"

#include <chrono>

namespace lapidary {

int64_t UnixTime() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t UnixNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

OrderedJson Usage::ToJson() const {
  OrderedJson details = {{"reasoning_tokens", reasoning_tokens},
                         {"accepted_prediction_tokens", drafts.accepted},
                         {"rejected_prediction_tokens", drafts.rejected}};
  for (int source = 0; source < kNumDraftSources; ++source) {
    const DraftTokens& tokens = drafts_by_source[source];
    if (tokens.accepted + tokens.rejected == 0) continue;
    details["prediction_tokens_by_source"][DraftSourceName(static_cast<DraftSource>(source))] = {
        {"accepted", tokens.accepted}, {"rejected", tokens.rejected}};
  }
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}},
          {"completion_tokens_details", std::move(details)}};
}

}  // namespace lapidary
