#include "bench/random_prompts.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace lapidary::bench {
namespace {

// std::uniform_int_distribution differs between libraries; a seed should mean the same everywhere.
// The bias of the remainder is below 2^-32.
int32_t Draw(std::mt19937_64& generator, int32_t low, int32_t high) {
  return low + static_cast<int32_t>(generator() % static_cast<uint64_t>(high - low + 1));
}

int DrawLength(std::mt19937_64& generator, int length, double ratio, int least) {
  const int low = std::max(static_cast<int>(std::floor(length * (1.0 - ratio))), least);
  const int high = std::max(static_cast<int>(std::ceil(length * (1.0 + ratio))), low);
  return Draw(generator, low, high);
}

}  // namespace

int FirstPlainId(int vocab_size) { return std::min(512, vocab_size / 4); }

Result<std::vector<BenchPrompt>> MakeRandomPrompts(const RandomPromptOptions& options) {
  if (options.vocab_size < 1) {
    return MakeError("a vocabulary of {} tokens has none to draw", options.vocab_size);
  }
  if (!(options.range_ratio >= 0.0 && options.range_ratio < 1.0)) {
    return MakeError("--random-range-ratio {}: must be at least 0 and below 1",
                     options.range_ratio);
  }
  std::mt19937_64 generator(options.seed);
  const int32_t first = FirstPlainId(options.vocab_size);
  const auto append = [&](std::vector<int32_t>& ids, int count) {
    for (int idx = 0; idx < count; ++idx) {
      ids.push_back(Draw(generator, first, options.vocab_size - 1));
    }
  };
  std::vector<int32_t> prefix;
  append(prefix, options.prefix_len);
  std::vector<BenchPrompt> prompts(options.num_prompts);
  for (BenchPrompt& prompt : prompts) {
    // A prompt holds at least one token.
    const int least = options.prefix_len == 0 ? 1 : 0;
    const int input_len = DrawLength(generator, options.input_len, options.range_ratio, least);
    prompt.output_len = DrawLength(generator, options.output_len, options.range_ratio, 1);
    prompt.ids = prefix;
    append(prompt.ids, input_len);
  }
  return prompts;
}

}  // namespace lapidary::bench
