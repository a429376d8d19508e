#include "adapter/module_patterns.h"

#include <algorithm>

#include "base/json_fields.h"
#include "grammar/regex_syntax.h"

namespace lapidary {
namespace {

using grammar::RegexScope;
using grammar::TextEncoding;

constexpr int64_t kMaxWork = 2'000 * grammar::Work::kStepsPerMillisecond;
constexpr std::string_view kAllLinear = "all-linear";

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

// A whole module name, or its end behind a dot.
bool EndsWithModule(std::string_view module, std::string_view end) {
  return module == end || (module.ends_with(end) && module.size() > end.size() &&
                           module[module.size() - end.size() - 1] == '.');
}

}  // namespace

Result<ModulePatterns> ModulePatterns::Make(const AdapterConfig& config, std::string_view name) {
  ModulePatterns patterns(config);
  patterns.name_ = name;
  patterns.work_ = std::make_unique<grammar::Work>(kMaxWork);
  patterns.pool_.set_work(patterns.work_.get());
  for (const auto& [text, rank] : config.rank_pattern) {
    ASSIGN_OR_RETURN(Pattern pattern, patterns.MakePattern(text));
    patterns.ranks_.push_back(std::move(pattern));
  }
  for (const auto& [text, alpha] : config.alpha_pattern) {
    ASSIGN_OR_RETURN(Pattern pattern, patterns.MakePattern(text));
    patterns.alphas_.push_back(std::move(pattern));
  }
  if (!config.target_regex.empty() && config.target_regex != kAllLinear) {
    const auto regex =
        ParseRegex(&patterns.pool_, config.target_regex, RegexScope::kWhole, TextEncoding::kUtf8);
    if (regex.ok()) patterns.target_ = *regex;
    patterns.pool_.ClearLimitError();
  }
  return patterns;
}

Result<ModulePatterns::Pattern> ModulePatterns::MakePattern(const std::string& text) {
  Pattern pattern{text, std::nullopt};
  if (std::ranges::all_of(text, IsNameCharacter)) return pattern;
  // As PEFT: the name's end, behind a dot.
  const auto regex = ParseRegex(&pool_, fmt::format("(.*\\.)?({})", text), RegexScope::kWhole,
                                TextEncoding::kUtf8);
  if (!regex.ok() || pool_.limit_error() != nullptr) {
    return MakeError("{}: cannot read the expression '{}': {}", name_, ShortUtf8(text, 120),
                     regex.ok() ? "it is too large" : regex.error().message);
  }
  pattern.regex = *regex;
  return pattern;
}

bool ModulePatterns::MatchesRegex(grammar::RegexId regex, std::string_view module) {
  return pool_.limit_error() == nullptr && pool_.Matches(regex, module);
}

bool ModulePatterns::Matches(const Pattern& pattern, std::string_view module) {
  if (pattern.regex) return MatchesRegex(*pattern.regex, module);
  const std::string& text = pattern.text;
  if (text.size() > module.size()) return false;
  const std::string_view end = module.substr(module.size() - text.size());
  if (end.size() < module.size() && module[module.size() - end.size() - 1] != '.') return false;
  return std::ranges::equal(text, end, [](char of, char c) { return of == c || of == '.'; });
}

Status ModulePatterns::CheckWork() const {
  if (pool_.limit_error() == nullptr) return {};
  return MakeError("{}: an expression for module names is too large: {}", name_,
                   pool_.limit_error());
}

template <typename Value>
Result<int> ModulePatterns::FindMatch(const std::vector<Pattern>& patterns,
                                      const std::vector<std::pair<std::string, Value>>& entries,
                                      std::string_view module) {
  int found = -1;
  for (size_t idx = 0; idx < patterns.size(); ++idx) {
    if (!Matches(patterns[idx], module)) continue;
    if (found >= 0 && entries[found].second != entries[idx].second) {
      return MakeError("{}: both '{}' and '{}' match {}, with different values; keep one of them",
                       name_, ShortUtf8(entries[found].first, 120),
                       ShortUtf8(entries[idx].first, 120), ShortUtf8(module, 200));
    }
    if (found < 0) found = static_cast<int>(idx);
  }
  RETURN_IF_ERROR(CheckWork());
  return found;
}

Result<int> ModulePatterns::RankOf(std::string_view module) {
  ASSIGN_OR_RETURN(const int found, FindMatch(ranks_, config_->rank_pattern, module));
  return found < 0 ? config_->rank : config_->rank_pattern[found].second;
}

Result<double> ModulePatterns::AlphaOf(std::string_view module) {
  ASSIGN_OR_RETURN(const int found, FindMatch(alphas_, config_->alpha_pattern, module));
  return found < 0 ? config_->alpha : config_->alpha_pattern[found].second;
}

bool ModulePatterns::IsTarget(std::string_view module, int layer) {
  if (target_) return MatchesRegex(*target_, module) || pool_.limit_error() != nullptr;
  if (config_->target_modules.empty()) return true;
  const auto& layers = config_->layers_to_transform;
  if (layers && layer >= 0 && std::ranges::find(*layers, layer) == layers->end()) return false;
  return std::ranges::any_of(config_->target_modules,
                             [&](const std::string& end) { return EndsWithModule(module, end); });
}

bool ModulePatterns::IsTargetParameter(std::string_view parameter) const {
  if (config_->target_parameters.empty()) return true;
  return std::ranges::any_of(config_->target_parameters, [&](const std::string& end) {
    return EndsWithModule(parameter, end);
  });
}

}  // namespace lapidary
