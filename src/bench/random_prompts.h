// Prompts of random token ids, the workload every server can be given alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace lapidary::bench {

struct RandomPromptOptions {
  int num_prompts = 1;
  int prefix_len = 0;  // tokens that all prompts begin with
  int input_len = 1024;
  int output_len = 128;
  // Lengths are uniform in [len * (1 - ratio), len * (1 + ratio)]; in [0, 1).
  double range_ratio = 0.0;
  int vocab_size = 0;
  uint64_t seed = 0;
};

struct BenchPrompt {
  std::vector<int32_t> ids;
  std::string text = {};  // instead of ids, if there is one
  int output_len = 0;
};

// Ids below this are never drawn: special tokens live there.
int FirstPlainId(int vocab_size);

// Two prompts agree in their prefix and, but for chance, nowhere else. The first prompts of two
// calls that differ in num_prompts alone are the same.
Result<std::vector<BenchPrompt>> MakeRandomPrompts(const RandomPromptOptions& options);

}  // namespace lapidary::bench
