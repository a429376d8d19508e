#include "executor/simulated/made_up_text.h"

#include <algorithm>

namespace lapidary::simulated {
namespace {

constexpr float kDecisiveBias = 20.0f;

// Finaliser of splitmix64: every bit depends on all.
uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

bool Has(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// What may come.
class Choice {
 public:
  Choice(const Vocabulary& vocabulary, const SamplingParams& sampling,
         std::span<const uint32_t> mask)
      : vocabulary_(vocabulary), sampling_(sampling), mask_(mask) {
    for (const LogitBias& bias : sampling.logit_bias) {
      if (bias.bias <= -kDecisiveBias) forbidden_.push_back(bias.id);
    }
  }

  bool Allows(int32_t id) const {
    if (id < 0 || id >= vocabulary_.size) return false;
    if (!mask_.empty() && (mask_[id / 32] >> (id % 32) & 1) == 0) return false;
    if (!sampling_.allowed_tokens.empty() && !Has(sampling_.allowed_tokens, id)) return false;
    return !Has(sampling_.suppress_tokens, id) && !Has(forbidden_, id);
  }

  // One of a list by a number, of an empty one any id; -1: none of them may come.
  int32_t Any(std::span<const int32_t> ids, uint64_t number) const {
    constexpr int kAttempts = 16;
    const auto count = static_cast<uint64_t>(ids.empty() ? vocabulary_.size : ids.size());
    const auto at = [&](uint64_t idx) {
      return ids.empty() ? static_cast<int32_t>(idx) : ids[idx];
    };
    for (int attempt = 0; attempt < kAttempts; ++attempt, number = Mix(number + 1)) {
      const int32_t id = at(number % count);
      if (Allows(id)) return id;
    }
    // Few may come: the number counts among those.
    std::vector<int32_t> allowed;
    for (uint64_t idx = 0; idx < count; ++idx) {
      if (Allows(at(idx))) allowed.push_back(at(idx));
    }
    return allowed.empty() ? -1 : allowed[number % allowed.size()];
  }

  // Whether most words may come: then a mask bans a few texts and asks for no form.
  bool IsFreeText(uint64_t number) const {
    constexpr int kSamples = 8;
    if (mask_.empty()) return true;
    int num_allowed = 0;
    for (int sample = 0; sample < kSamples; ++sample, number = Mix(number + 1)) {
      if (vocabulary_.words.empty()) return false;
      num_allowed += Allows(vocabulary_.words[number % vocabulary_.words.size()]) ? 1 : 0;
    }
    return 2 * num_allowed >= kSamples;
  }

 private:
  const Vocabulary& vocabulary_;
  const SamplingParams& sampling_;
  const std::span<const uint32_t> mask_;
  std::vector<int32_t> forbidden_;  // by their biases
};

}  // namespace

TextHash Append(TextHash text, int32_t id) {
  return Mix(text * 0xd1342543de82ef95u + static_cast<uint64_t>(id) + 1);
}

int32_t ChooseToken(const Vocabulary& vocabulary, TextHash text, uint64_t draw_number,
                    const SamplingParams& sampling, std::span<const uint32_t> mask) {
  const Choice choice(vocabulary, sampling, mask);
  const LogitBias* wanted = nullptr;
  for (const LogitBias& bias : sampling.logit_bias) {
    if (bias.bias < kDecisiveBias || !choice.Allows(bias.id)) continue;
    if (wanted == nullptr || bias.bias > wanted->bias) wanted = &bias;
  }
  if (wanted != nullptr) return wanted->id;
  const uint64_t number = Mix(text ^ 0x5851f42d4c957f2du);
  const bool is_done = draw_number >= kLeastAnswerTokens && (number >> 32) % kMeanAnswerTokens == 0;
  if (choice.Allows(vocabulary.stop)) {
    // A form that is complete ends.
    if (is_done || !choice.IsFreeText(number)) return vocabulary.stop;
  } else if (!mask.empty() && number % 4 == 0) {
    // One that is not is brought nearer to its end now and then.
    for (const int32_t id : vocabulary.closers) {
      if (choice.Allows(id)) return id;
    }
  }
  const std::vector<int32_t>& words = draw_number == 0 && !vocabulary.first_words.empty()
                                          ? vocabulary.first_words
                                          : vocabulary.words;
  const int32_t id = choice.Any(words, Mix(number));
  return id >= 0 || words.empty() ? id : choice.Any({}, Mix(number));
}

SampledToken WithLogprobs(const Vocabulary& vocabulary, TextHash text, int32_t id,
                          int32_t num_top) {
  SampledToken token;
  token.id = id;
  if (num_top < 0) return token;
  // The token is the likeliest, the others follow at distances of a half.
  token.logprob = -0.001f - static_cast<float>(Append(text, id) % 1000) * 0.001f;
  num_top = std::min({num_top, kMaxLogprobs, vocabulary.size});
  uint64_t number = Mix(text);
  while (token.num_top < num_top) {
    int32_t other = static_cast<int32_t>(number % static_cast<uint64_t>(vocabulary.size));
    if (token.num_top == 0) other = id;
    const auto named = token.top_logprobs();
    const bool is_new = std::none_of(named.begin(), named.end(),
                                     [&](const TokenLogprob& top) { return top.id == other; });
    if (is_new) {
      token.top[token.num_top] = {other, token.logprob - 0.5f * static_cast<float>(token.num_top)};
      ++token.num_top;
    }
    number = number % 2 == 0 ? Mix(number + 1) : number + 1;
  }
  return token;
}

}  // namespace lapidary::simulated
