#include "adapter/adapter_config.h"

#include <cmath>

#include "base/json_fields.h"

namespace lapidary {
namespace {

constexpr int kMaxDepth = 20;
constexpr size_t kMaxEntries = 8192;  // of a list or a pattern: a model has fewer modules
constexpr size_t kMaxNameBytes = 4096;
constexpr double kMaxAlpha = 1e6;

// Fields that are null, false or empty where an adapter is nothing but low-rank deltas.
struct ForeignField {
  const char* key;
  const char* what;
};
constexpr ForeignField kForeignFields[] = {
    {"use_dora", "DoRA"},
    {"lora_bias", "a bias of its own"},
    {"modules_to_save", "whole modules beside the deltas"},
    {"trainable_token_indices", "token embeddings of its own"},
    {"layer_replication", "layers that are there several times"},
    {"alora_invocation_tokens", "activation by tokens (aLoRA)"},
    {"use_qalora", "QALoRA"},
    {"use_bdlora", "BD-LoRA"},
    {"arrow_config", "routing between adapters (Arrow)"},
    {"kasa_config", "KaSA"},
    {"monteclora_config", "MonteCLoRA"},
};

bool IsUnset(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// Ways to begin training that also change the weights of the model beneath.
bool ChangesBaseWeights(const std::string& init) {
  for (const std::string_view prefix : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
    if (init.starts_with(prefix)) return true;
  }
  return false;
}

Status RefuseForeign(const Json& json, std::string_view name) {
  for (const auto& [key, what] : kForeignFields) {
    const auto field = json.find(key);
    if (field == json.end() || IsUnset(*field)) continue;
    return MakeError(
        "{}: {} asks for {}, which is not supported; merge such an adapter into its model "
        "(PEFT: merge_and_unload)",
        name, key, what);
  }
  JsonFields fields(json, std::string(name));
  const std::string type = fields.StringOr("peft_type", "LORA");
  const std::string bias = fields.StringOr("bias", "none");
  RETURN_IF_ERROR(fields.status());
  if (type != "LORA") {
    return MakeError("{}: peft_type is '{}'; only LORA adapters are supported", name,
                     ShortUtf8(type, 60));
  }
  if (bias != "none") {
    return MakeError("{}: bias is '{}'; adapters with biases are not supported", name,
                     ShortUtf8(bias, 60));
  }
  const auto init = json.find("init_lora_weights");
  if (init != json.end() && init->is_string() && ChangesBaseWeights(init->get<std::string>())) {
    return MakeError(
        "{}: init_lora_weights is '{}', which also changes the model's own weights; convert the "
        "adapter to plain LoRA as it is saved (PEFT: path_initial_model_for_weight_conversion)",
        name, ShortUtf8(init->get<std::string>(), 60));
  }
  return {};
}

// A list of strings, or one string where `single` may take it.
Status ReadNames(const Json& json, std::string_view name, const char* key, std::string* single,
                 std::vector<std::string>* list) {
  const auto field = json.find(key);
  if (field == json.end() || field->is_null()) return {};
  if (single != nullptr && field->is_string()) {
    *single = field->get<std::string>();
    if (single->size() > kMaxNameBytes) return MakeError("{}: {} is too long", name, key);
    return {};
  }
  if (!field->is_array() || field->size() > kMaxEntries) {
    return MakeError("{}: {} must be a list of at most {} names{}", name, key, kMaxEntries,
                     single != nullptr ? ", or a regular expression" : "");
  }
  for (const Json& entry : *field) {
    if (!entry.is_string() || entry.get_ref<const std::string&>().size() > kMaxNameBytes) {
      return MakeError("{}: {} holds something that is not a name", name, key);
    }
    list->push_back(entry.get<std::string>());
  }
  return {};
}

template <typename Value>
Status ReadPattern(const Json& json, std::string_view name, const char* key, double min, double max,
                   std::vector<std::pair<std::string, Value>>* pattern) {
  const auto field = json.find(key);
  if (field == json.end() || field->is_null()) return {};
  if (!field->is_object() || field->size() > kMaxEntries) {
    return MakeError("{}: {} must be an object of at most {} entries", name, key, kMaxEntries);
  }
  for (const auto& [module, value] : field->items()) {
    const double number = value.is_number() ? value.template get<double>() : -1.0;
    const bool fits = number >= min && number <= max && module.size() <= kMaxNameBytes;
    if (!fits || static_cast<double>(static_cast<Value>(number)) != number) {
      return MakeError("{}: {} of '{}' must be between {} and {}", name, key,
                       ShortUtf8(module, 120), min, max);
    }
    pattern->emplace_back(module, static_cast<Value>(number));
  }
  return {};
}

// A layer's index, or a list of them.
Status ReadLayers(const Json& json, std::string_view name,
                  std::optional<std::vector<int>>* layers) {
  const auto field = json.find("layers_to_transform");
  if (field == json.end() || field->is_null()) return {};
  const Json list = field->is_array() ? *field : Json::array({*field});
  if (list.empty()) return {};  // As in PEFT: all of them.
  if (list.size() > kMaxEntries) {
    return MakeError("{}: layers_to_transform must have at most {} layers", name, kMaxEntries);
  }
  layers->emplace();
  for (const Json& layer : list) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() > INT32_MAX) {
      return MakeError("{}: layers_to_transform holds something that is not a layer's index", name);
    }
    (*layers)->push_back(layer.get<int>());
  }
  return {};
}

}  // namespace

Result<AdapterConfig> ParseAdapterConfig(std::string_view text, std::string_view name) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, name, {.max_depth = kMaxDepth}));
  if (!json.is_object()) return MakeError("{}: not a JSON object", name);
  RETURN_IF_ERROR(RefuseForeign(json, name));
  AdapterConfig config;
  JsonFields fields(json, std::string(name));
  config.rank = static_cast<int>(fields.IntOr("r", 8, {.min = 1, .max = kMaxAdapterRank}));
  config.alpha = fields.NumberOr("lora_alpha", 8.0, {.min = 0.0, .max = kMaxAlpha});
  config.scales_by_root = fields.BoolOr("use_rslora", false);
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(
      ReadPattern(json, name, "rank_pattern", 1, kMaxAdapterRank, &config.rank_pattern));
  RETURN_IF_ERROR(ReadPattern(json, name, "alpha_pattern", 0, kMaxAlpha, &config.alpha_pattern));
  RETURN_IF_ERROR(
      ReadNames(json, name, "target_modules", &config.target_regex, &config.target_modules));
  RETURN_IF_ERROR(ReadNames(json, name, "target_parameters", nullptr, &config.target_parameters));
  RETURN_IF_ERROR(ReadLayers(json, name, &config.layers_to_transform));
  return config;
}

}  // namespace lapidary
