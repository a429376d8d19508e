// How a request wants its tokens drawn.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace lapidary {

inline constexpr int kMaxLogprobs = 20;
inline constexpr int kMaxLogitBiases = 1024;
// Temperatures below this are greedy: dividing by them leaves nothing but the maximum.
inline constexpr float kGreedyTemperature = 1e-5f;

struct LogitBias {
  int32_t id = 0;
  float bias = 0;  // In [-100, 100], added to the logit. Biases of the same id add up.
};

// The defaults change nothing: draw from the model's own distribution.
struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy.
  int32_t top_k = 0;                // 0 or -1: off.
  float top_p = 1.0f;               // (0, 1]; 1: off.
  float min_p = 0.0f;               // [0, 1], relative to the likeliest token; 0: off.
  float repetition_penalty = 1.0f;  // > 0, for tokens of the prompt and the output; 1: off.
  float presence_penalty = 0.0f;    // [-2, 2], for tokens of the output.
  float frequency_penalty = 0.0f;   // [-2, 2], per occurrence in the output.
  std::vector<LogitBias> logit_bias = {};
  std::vector<int32_t> suppress_tokens = {};  // Never drawn.
  std::vector<int32_t> allowed_tokens = {};   // Nothing else is drawn; empty: every token may be.
  uint64_t seed = 0;
  int32_t num_logprobs = -1;  // -1: none; 0: of the drawn token; up to 20: also of the likeliest.

  bool greedy() const { return temperature < kGreedyTemperature; }
  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }

  // What a sampler of this vocabulary accepts; the message names the field as the API spells it.
  Status Validate(int32_t vocab_size) const;
};

}  // namespace lapidary
