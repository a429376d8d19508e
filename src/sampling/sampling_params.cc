#include "sampling/sampling_params.h"

#include <cmath>

namespace lapidary {
namespace {

constexpr float kMaxPenalty = 2.0f;
constexpr float kMaxBias = 100.0f;

// NaN compares false with everything, so each test is written as what has to hold.
Status CheckPenalty(const char* name, float value) {
  if (value >= -kMaxPenalty && value <= kMaxPenalty) return {};
  return MakeError("{} must be between -2 and 2, got {}", name, value);
}

Status CheckId(const char* name, int32_t id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return MakeError("{}: token id {} is not in the vocabulary of {}", name, id, vocab_size);
}

}  // namespace

Status SamplingParams::Validate(int32_t vocab_size) const {
  if (!(temperature >= 0.0f && std::isfinite(temperature))) {
    return MakeError("temperature must be a finite number of at least 0, got {}", temperature);
  }
  if (top_k < -1) return MakeError("top_k must be at least -1 (0 and -1: off), got {}", top_k);
  if (!(top_p > 0.0f && top_p <= 1.0f)) {
    return MakeError("top_p must be above 0 and at most 1, got {}", top_p);
  }
  if (!(min_p >= 0.0f && min_p <= 1.0f)) {
    return MakeError("min_p must be between 0 and 1, got {}", min_p);
  }
  if (!(repetition_penalty > 0.0f && std::isfinite(repetition_penalty))) {
    return MakeError("repetition_penalty must be a finite number above 0, got {}",
                     repetition_penalty);
  }
  RETURN_IF_ERROR(CheckPenalty("presence_penalty", presence_penalty));
  RETURN_IF_ERROR(CheckPenalty("frequency_penalty", frequency_penalty));
  if (logit_bias.size() > kMaxLogitBiases) {
    return MakeError("logit_bias has {} entries, at most {} are allowed", logit_bias.size(),
                     kMaxLogitBiases);
  }
  for (const LogitBias& entry : logit_bias) {
    RETURN_IF_ERROR(CheckId("logit_bias", entry.id, vocab_size));
    if (!(entry.bias >= -kMaxBias && entry.bias <= kMaxBias)) {
      return MakeError("logit_bias of token {} must be between -100 and 100, got {}", entry.id,
                       entry.bias);
    }
  }
  for (const int32_t id : suppress_tokens) {
    RETURN_IF_ERROR(CheckId("suppress_tokens", id, vocab_size));
  }
  for (const int32_t id : allowed_tokens) {
    RETURN_IF_ERROR(CheckId("allowed_token_ids", id, vocab_size));
  }
  if (num_logprobs < -1 || num_logprobs > kMaxLogprobs) {
    return MakeError("top_logprobs must be between 0 and {}, got {}", kMaxLogprobs, num_logprobs);
  }
  return {};
}

}  // namespace lapidary
