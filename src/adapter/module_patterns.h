// Matches the module names of an adapter against what its config says about them, as PEFT does.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/adapter_config.h"
#include "grammar/regex_pool.h"
#include "grammar/work.h"

namespace lapidary {

// Module names as PEFT knows them: "model.language_model.layers.3.self_attn.q_proj".
class ModulePatterns {
 public:
  // `config` must outlive it. An error for an expression of rank_pattern or alpha_pattern that
  // cannot be read. `name` begins the messages.
  static Result<ModulePatterns> Make(const AdapterConfig& config, std::string_view name);

  // The rank that the config gives a module, and the alpha: of the entry that matches it, else of
  // all. An error where entries of different values match: PEFT takes the first one, and JSON
  // objects have no order.
  Result<int> RankOf(std::string_view module);
  Result<double> AlphaOf(std::string_view module);

  // Whether the config names the module, of this layer (-1: of none); true where it cannot be said,
  // since target_modules is an expression of a kind that is not supported.
  bool IsTarget(std::string_view module, int layer);
  // The same of a parameter of experts, "....experts.down_proj".
  bool IsTargetParameter(std::string_view parameter) const;

 private:
  // An expression, and a name's end that is one for most.
  struct Pattern {
    std::string text;
    std::optional<grammar::RegexId> regex;  // none: `text` has no operator but "."
  };

  explicit ModulePatterns(const AdapterConfig& config) : config_(&config) {}
  Result<Pattern> MakePattern(const std::string& text);
  bool Matches(const Pattern& pattern, std::string_view module);
  bool MatchesRegex(grammar::RegexId regex, std::string_view module);
  // The one of several patterns; -1: none.
  template <typename Value>
  Result<int> FindMatch(const std::vector<Pattern>& patterns,
                        const std::vector<std::pair<std::string, Value>>& entries,
                        std::string_view module);
  Status CheckWork() const;

  const AdapterConfig* config_;
  std::string name_;
  std::unique_ptr<grammar::Work> work_;  // of all expressions together
  grammar::RegexPool pool_;
  std::vector<Pattern> ranks_;
  std::vector<Pattern> alphas_;
  std::optional<grammar::RegexId> target_;
};

}  // namespace lapidary
