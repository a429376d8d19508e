#include "apps/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/edit_distance.h"
#include "base/read_file.h"

namespace lapidary {
namespace {

// "max-model-len" for --max-model-len, "model" for the positional; empty: not for files.
std::string KeyOf(const CLI::Option& option) {
  if (option.get_lnames().empty()) return option.get_name();
  const std::string& name = option.get_lnames()[0];
  return name == "help" || name == "config" ? "" : name;
}

std::string NearestKey(const CLI::App& command, const std::string& key) {
  std::string nearest;
  size_t least = std::string::npos;
  for (const CLI::Option* option : command.get_options()) {
    const std::string candidate = KeyOf(*option);
    const size_t distance = EditDistance(key, candidate);
    if (candidate.empty() || distance >= least) continue;
    nearest = candidate;
    least = distance;
  }
  return nearest;
}

Result<std::vector<std::string>> ReadValues(const YAML::Node& value) {
  std::vector<std::string> values;
  if (value.IsScalar()) {
    values.push_back(value.Scalar());
  } else if (value.IsSequence()) {
    for (const YAML::Node& item : value) {
      if (!item.IsScalar()) return MakeError("a list must hold plain values");
      values.push_back(item.Scalar());
    }
  } else {
    return MakeError("must be a value or a list of values");
  }
  return values;
}

Status ApplyValue(CLI::Option& option, const YAML::Node& value) {
  ASSIGN_OR_RETURN(const std::vector<std::string> values, ReadValues(value));
  const bool takes_many = option.get_items_expected_max() > 1;
  if (!takes_many && values.size() != 1) return MakeError("takes one value");
  if (option.count() > 0) return {};  // The command line and the environment go first.
  if (values.empty()) return {};
  try {
    for (const std::string& text : values) option.add_result(text);
    option.run_callback();
  } catch (const CLI::Error& error) {
    return MakeError("{}", error.what());
  }
  return {};
}

Status ApplyAll(const YAML::Node& root, CLI::App& command) {
  if (root.IsNull()) return {};
  if (!root.IsMap()) return MakeError("must hold lines of the form 'key: value'");
  std::set<std::string> seen;
  for (const auto& entry : root) {
    if (!entry.first.IsScalar()) return MakeError("a key must be a flag's name");
    const std::string key = entry.first.Scalar();
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');  // Python's spelling.
    if (!seen.insert(name).second) return MakeError("'{}' is there twice", key);
    const auto options = command.get_options(
        [&](const CLI::Option* option) { return !name.empty() && KeyOf(*option) == name; });
    if (options.empty()) {
      return MakeError("unknown key '{}'; the nearest is '{}'", key, NearestKey(command, key));
    }
    if (const Status applied = ApplyValue(*options[0], entry.second); !applied.ok()) {
      return MakeError("'{}': {}", key, applied.error().message);
    }
  }
  return {};
}

}  // namespace

Status ApplyConfigFile(const std::string& path, CLI::App& command) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
  try {
    if (const Status applied = ApplyAll(YAML::Load(text), command); !applied.ok()) {
      return MakeError("{}: {}", path, applied.error().message);
    }
  } catch (const YAML::Exception& error) {
    return MakeError("{}: not valid YAML: {}", path, error.what());
  }
  return {};
}

}  // namespace lapidary
