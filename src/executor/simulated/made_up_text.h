// What a simulated device answers: tokens made up from a hash of the text before them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/sampler.h"
#include "sampling/sampling_params.h"

namespace lapidary::simulated {

// Stands for a sequence of tokens; any two that differ have different ones, as far as 64 bits go.
using TextHash = uint64_t;
inline constexpr TextHash kNoText = 0x9e3779b97f4a7c15u;
TextHash Append(TextHash text, int32_t id);

// Tokens of the vocabulary by what they do in a text. All lists may be empty.
struct Vocabulary {
  int32_t size = 0;
  std::vector<int32_t> words;  // that make readable text one behind another,
  // and those that may begin one: chat templates trim the space before the first word.
  std::vector<int32_t> first_words;
  std::vector<int32_t> closers;  // end a string or a bracket, so that forms are filled in some day
  int32_t stop = -1;             // ends an answer; -1: none does
};

// Answers that may end are about so many tokens long on average, and never shorter than the least.
inline constexpr uint64_t kMeanAnswerTokens = 256;
inline constexpr uint64_t kLeastAnswerTokens = 16;

// The token behind `text`, the `draw_number`th of its answer: a function of both and of what may
// come. `mask`, if not empty: only tokens whose bits are set may. Of `sampling` it heeds what
// allows and forbids tokens, biases of 20 and more either way included; nothing makes a token more
// or less likely. -1: no token may come.
int32_t ChooseToken(const Vocabulary& vocabulary, TextHash text, uint64_t draw_number,
                    const SamplingParams& sampling, std::span<const uint32_t> mask);

// With made-up logprobs: of the token, and of `num_top` likeliest, -1 for neither.
SampledToken WithLogprobs(const Vocabulary& vocabulary, TextHash text, int32_t id, int32_t num_top);

}  // namespace lapidary::simulated
