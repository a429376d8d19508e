// adapter_config.json of a LoRA adapter, as PEFT writes it (Unsloth and TRL write with PEFT).
//
// Of an untrusted file: types and ranges are checked, and whatever changes the model in a way that
// is not a low-rank delta (DoRA, biases, saved modules, ...) is refused by its field's name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace lapidary {

inline constexpr int kMaxAdapterRank = 256;

struct AdapterConfig {
  int rank = 8;
  double alpha = 8.0;
  bool scales_by_root = false;  // use_rslora: alpha / sqrt(rank) in the place of alpha / rank
  // By regular expressions of module names, as AdapterPatterns matches them.
  std::vector<std::pair<std::string, int>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  // Which modules have deltas: ends of their names, or one regular expression of all of them.
  // Neither: the file's tensors say it.
  std::vector<std::string> target_modules;
  std::string target_regex;
  std::vector<std::string> target_parameters;           // of experts: ends of names
  std::optional<std::vector<int>> layers_to_transform;  // with target_modules
};

// `name` begins the messages.
Result<AdapterConfig> ParseAdapterConfig(std::string_view text, std::string_view name);

}  // namespace lapidary
