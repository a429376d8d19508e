// What a checkpoint says about generation: where it stops and how it wants to be sampled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sampling/sampling_params.h"

namespace lapidary {

struct GenerationDefaults {
  // Greedy when there is no generation_config.json or it does not set do_sample; otherwise its
  // temperature, top_k, top_p and min_p. Repetition penalty and suppressed tokens hold either way.
  SamplingParams sampling;

  // The union of eos_token_id in generation_config.json, config.json and its text_config, in that
  // order and without repeats. No one file has all of them: Gemma 4's instruction checkpoints say
  // [1, 106, 50], [1, 106] and 1. Empty when no file names one.
  std::vector<int32_t> stop_ids;

  // Reads config.json, which must be there, and generation_config.json if there is one.
  static Result<GenerationDefaults> Load(const std::filesystem::path& model_dir);

  // The same from the files' texts; nullopt for a file that does not exist.
  static Result<GenerationDefaults> Parse(std::optional<std::string_view> generation_config,
                                          std::optional<std::string_view> config);
};

}  // namespace lapidary
