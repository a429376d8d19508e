#include "sampling/generation_config.h"

#include <algorithm>
#include <limits>
#include <string>
#include <system_error>

#include "base/json.h"
#include "base/read_file.h"

namespace lapidary {
namespace {

using Json = nlohmann::json;

constexpr const char* kGenerationFile = "generation_config.json";
constexpr const char* kConfigFile = "config.json";

// Where a value was found, for messages: "config.json: text_config.eos_token_id".
struct Place {
  const char* file;
  std::string prefix;

  std::string Name(const char* key) const { return fmt::format("{}: {}{}", file, prefix, key); }
};

// The member, or nullptr when it is absent or null: the files write null for "not set".
const Json* Find(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member == object.end() || member->is_null() ? nullptr : &*member;
}

Result<Json> ParseObject(std::string_view text, const char* file) {
  Json json = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return MakeError("{} is not valid JSON", file);
  if (!json.is_object()) return MakeError("{} must hold a JSON object", file);
  return json;
}

Result<int32_t> ToInt32(const Json& value, const std::string& name, int32_t least) {
  // An integer beyond 64 bits is parsed as a float, and so refused here too.
  if (!value.is_number_integer()) {
    return MakeError("{} must be an integer, got {}", name, value.type_name());
  }
  const bool too_large =
      value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
  if (too_large || value.get<int64_t>() < least) {
    return MakeError("{} must be between {} and 2147483647, got {}", name, least, value.dump());
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

// A scalar or a list of token ids, appended where not yet present.
Status AddIds(const Json& object, const char* key, const Place& place, std::vector<int32_t>& ids) {
  const Json* value = Find(object, key);
  if (value == nullptr) return {};
  const std::string name = place.Name(key);
  const auto add = [&](const Json& item) -> Status {
    ASSIGN_OR_RETURN(const int32_t id, ToInt32(item, name, /*least=*/0));
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    return {};
  };
  if (!value->is_array()) return add(*value);
  for (const Json& item : *value) RETURN_IF_ERROR(add(item));
  return {};
}

Status ReadFloat(const Json& object, const char* key, const Place& place, float& field) {
  const Json* value = Find(object, key);
  if (value == nullptr) return {};
  if (!value->is_number()) {
    return MakeError("{} must be a number, got {}", place.Name(key), value->type_name());
  }
  field = static_cast<float>(value->get<double>());
  return {};
}

// The ranges are those of SamplingParams::Validate, called once all is read.
Status ReadSampling(const Json& json, const Place& place, SamplingParams& sampling) {
  bool do_sample = false;
  if (const Json* value = Find(json, "do_sample")) {
    if (!value->is_boolean()) {
      return MakeError("{} must be true or false, got {}", place.Name("do_sample"),
                       value->type_name());
    }
    do_sample = value->get<bool>();
  }
  RETURN_IF_ERROR(ReadFloat(json, "temperature", place, sampling.temperature));
  RETURN_IF_ERROR(ReadFloat(json, "top_p", place, sampling.top_p));
  RETURN_IF_ERROR(ReadFloat(json, "min_p", place, sampling.min_p));
  RETURN_IF_ERROR(ReadFloat(json, "repetition_penalty", place, sampling.repetition_penalty));
  if (const Json* value = Find(json, "top_k")) {
    ASSIGN_OR_RETURN(sampling.top_k, ToInt32(*value, place.Name("top_k"), /*least=*/-1));
  }
  RETURN_IF_ERROR(AddIds(json, "suppress_tokens", place, sampling.suppress_tokens));
  if (const Status status = sampling.Validate(std::numeric_limits<int32_t>::max()); !status.ok()) {
    return MakeError("{}: {}", place.file, status.error().message);
  }
  if (!do_sample) sampling.temperature = 0.0f;
  return {};
}

}  // namespace

Result<GenerationDefaults> GenerationDefaults::Load(const std::filesystem::path& model_dir) {
  ASSIGN_OR_RETURN(const std::string config,
                   ReadFile(model_dir / kConfigFile, kMaxConfigFileBytes));
  std::error_code error;
  if (!std::filesystem::exists(model_dir / kGenerationFile, error)) {
    return Parse(std::nullopt, config);
  }
  ASSIGN_OR_RETURN(const std::string generation,
                   ReadFile(model_dir / kGenerationFile, kMaxConfigFileBytes));
  return Parse(generation, config);
}

Result<GenerationDefaults> GenerationDefaults::Parse(
    std::optional<std::string_view> generation_config, std::optional<std::string_view> config) {
  GenerationDefaults defaults;
  defaults.sampling.temperature = 0.0f;
  if (generation_config) {
    const Place place{kGenerationFile, ""};
    ASSIGN_OR_RETURN(const Json json, ParseObject(*generation_config, kGenerationFile));
    defaults.sampling.temperature = 1.0f;
    RETURN_IF_ERROR(ReadSampling(json, place, defaults.sampling));
    RETURN_IF_ERROR(AddIds(json, "eos_token_id", place, defaults.stop_ids));
  }
  if (config) {
    ASSIGN_OR_RETURN(const Json json, ParseObject(*config, kConfigFile));
    RETURN_IF_ERROR(AddIds(json, "eos_token_id", {kConfigFile, ""}, defaults.stop_ids));
    if (const Json* text_config = Find(json, "text_config")) {
      if (!text_config->is_object()) {
        return MakeError("{}: text_config must be an object, got {}", kConfigFile,
                         text_config->type_name());
      }
      RETURN_IF_ERROR(
          AddIds(*text_config, "eos_token_id", {kConfigFile, "text_config."}, defaults.stop_ids));
    }
  }
  return defaults;
}

}  // namespace lapidary
