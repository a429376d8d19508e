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
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", reasoning_tokens},
            {"accepted_prediction_tokens", accepted_draft_tokens},
            {"rejected_prediction_tokens", rejected_draft_tokens}}}};
}

}  // namespace lapidary
