// A prompt as `echo` gives it back: its text, and where in it each token begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/generation_request.h"
#include "text/tokenizer.h"

namespace lapidary {

struct PromptEcho {
  std::string text;
  std::vector<size_t> offsets;  // characters before each token
  size_t num_characters = 0;    // of the text
};

// `ids` are those of `raw`, with or without a <bos> in front that is not in the text. Text comes
// back as it was sent, ids as their text, special tokens spelled out.
PromptEcho MakePromptEcho(const Tokenizer& tokenizer, const RawPrompt& raw,
                          const std::vector<int32_t>& ids);

}  // namespace lapidary
