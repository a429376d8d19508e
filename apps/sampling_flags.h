// How to draw tokens and where to stop: flags laid over a checkpoint's own defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "sampling/generation_config.h"

namespace lapidary {

struct SamplingFlags {
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<uint64_t> seed;

  void AddTo(CLI::App& command);

  // Each flag given replaces that one default. Without --seed, sampling gets a random one, which is
  // logged so that the run can be repeated.
  Result<SamplingParams> Over(const SamplingParams& defaults, int32_t vocab_size) const;
};

struct StopFlags {
  std::vector<std::string> strings;
  bool ignore_eos = false;
  int32_t min_tokens = 0;

  void AddTo(CLI::App& command);
  Status Check() const;  // of the strings
};

}  // namespace lapidary
