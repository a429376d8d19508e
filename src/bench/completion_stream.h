// One streamed answer: when its tokens came and how many they were.
//
// A chunk is not a token. Text may be held back (half a character, a possible stop string), so some
// tokens have no chunk; drafted tokens come several in one; the role, the usage and, from some
// servers, the end have chunks without any. Totals are the server's own usage, which all of them
// send. Gaps between chunks are split over the tokens of a chunk where the server counts in every
// chunk (continuous_usage_stats), and taken as they are where it does not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary::bench {

// What is known of a request when it is over. Times in seconds; starts are since the run began.
struct RequestRecord {
  bool success = false;
  std::string error;         // when it failed
  double arrival = 0.0;      // when it was due
  double start = 0.0;        // when it was sent
  double ttft = 0.0;         // from start to the first token
  double latency = 0.0;      // from start to the last token
  std::vector<double> itls;  // between tokens
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  std::string text;
};

class CompletionStream {
 public:
  // Takes one event's data, `now` seconds after the request was sent. An error: what came is no
  // completion, or the server reports that it failed.
  Status OnEvent(std::string_view data, double now);

  // Fills the tokens and times of `record` once the stream has ended; an error if it ended early.
  Status Finish(RequestRecord* record) const;

 private:
  void OnTokens(double now, std::optional<int64_t> num_tokens);

  bool is_done_ = false;      // [DONE]
  bool is_finished_ = false;  // a finish reason
  int64_t num_chunks_ = 0;    // that brought tokens
  double first_token_at_ = 0.0;
  double last_token_at_ = 0.0;
  double end_at_ = 0.0;                 // of the last chunk that had a choice
  std::optional<double> empty_end_at_;  // a finish reason without text: a stop token, or nothing
  bool counts_in_chunks_ = false;       // the first token's chunk had a usage
  std::optional<int64_t> prompt_tokens_;
  std::optional<int64_t> output_tokens_;
  std::vector<double> itls_;
  std::string text_;
};

// The message of an error body ({"error": {"message": ...}} or {"message": ...}), or the body's
// beginning.
std::string ErrorMessage(std::string_view body);

}  // namespace lapidary::bench
