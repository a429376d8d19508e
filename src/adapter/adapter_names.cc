#include "adapter/adapter_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "base/json_fields.h"
#include "checkpoint/checkpoint.h"

namespace lapidary {
namespace {

constexpr std::array<std::pair<std::string_view, AdapterSite>, kNumAdapterSites> kSiteNames = {{
    {"self_attn.q_proj", AdapterSite::kQuery},
    {"self_attn.k_proj", AdapterSite::kKey},
    {"self_attn.v_proj", AdapterSite::kValue},
    {"self_attn.o_proj", AdapterSite::kAttentionOutput},
    {"mlp.gate_proj", AdapterSite::kMlpGate},
    {"mlp.up_proj", AdapterSite::kMlpUp},
    {"mlp.down_proj", AdapterSite::kMlpDown},
    {"router.proj", AdapterSite::kRouter},
    {"per_layer_input_gate", AdapterSite::kPerLayerGate},
    {"per_layer_projection", AdapterSite::kPerLayerProjection},
    {"per_layer_model_projection", AdapterSite::kPerLayerModelProjection},
    {"experts.gate_up_proj", AdapterSite::kExpertGateUp},
    {"experts.down_proj", AdapterSite::kExpertDown},
}};

std::optional<AdapterSite> FindSite(std::string_view name) {
  for (const auto& [site_name, site] : kSiteNames) {
    if (site_name == name) return site;
  }
  return std::nullopt;
}

bool Consume(std::string_view prefix, std::string_view* text) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

bool ConsumeEnd(std::string_view end, std::string_view* text) {
  if (!text->ends_with(end)) return false;
  text->remove_suffix(end.size());
  return true;
}

// "17." at the beginning.
std::optional<int> ConsumeIndex(std::string_view* text) {
  int index = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), index);
  if (error != std::errc() || end == text->data() + text->size() || *end != '.' || index < 0) {
    return std::nullopt;
  }
  if (index > 0 && text->front() == '0') return std::nullopt;
  text->remove_prefix(end - text->data() + 1);
  return index;
}

// Why a name that is not lora_A or lora_B has no place here.
std::string_view ForeignKind(std::string_view tensor) {
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"lora_magnitude_vector", "DoRA is not supported"},
      {"lora_embedding", "deltas of embeddings are not supported"},
      {".bias", "biases are not supported"},
      {"modules_to_save", "whole modules beside the deltas are not supported"},
      {"token_adapter", "token embeddings of its own are not supported"},
      {"lora_", "this kind of adapter is not supported"},
  };
  for (const auto& [part, kind] : kKinds) {
    if (tensor.find(part) != std::string_view::npos) return kind;
  }
  return "it is no low-rank delta";
}

bool ParseExpert(std::string_view module, AdapterTensorName* name) {
  if (!Consume("experts", &module)) return false;
  if (module.empty() || module == ".base_layer") {
    name->experts = AdapterTensorName::Experts::kStacked;
    return true;
  }
  if (!Consume(".", &module)) return false;
  const std::optional<int> expert = ConsumeIndex(&module);
  if (!expert) return false;
  name->experts = AdapterTensorName::Experts::kOne;
  name->expert = *expert;
  name->site = module == "down_proj" ? AdapterSite::kExpertDown : AdapterSite::kExpertGateUp;
  if (module == "gate_proj") name->part = AdapterTensorName::Part::kGate;
  if (module == "up_proj") name->part = AdapterTensorName::Part::kUp;
  return module == "down_proj" || module == "gate_proj" || module == "up_proj" ||
         module == "gate_up_proj";
}

// A module of the decoder, as it is called in its layer.
bool ParseModule(std::string_view module, AdapterTensorName* name) {
  if (Consume("layers.", &module)) {
    const std::optional<int> layer = ConsumeIndex(&module);
    if (!layer) return false;
    name->layer = *layer;
    if (ParseExpert(module, name)) return true;
  }
  const std::optional<AdapterSite> site = FindSite(module);
  const bool is_outside = site == AdapterSite::kPerLayerModelProjection;
  if (!site || is_outside != (name->layer < 0) || module.starts_with("experts.")) return false;
  name->site = *site;
  return true;
}

}  // namespace

std::string_view AdapterSiteName(AdapterSite site) {
  const auto* const found =
      std::ranges::find(kSiteNames, site, [](const auto& entry) { return entry.second; });
  return found->first;
}

Result<AdapterTensorName> ParseAdapterTensorName(std::string_view tensor, std::string_view file) {
  const std::string shown = ShortUtf8(tensor, 160);
  AdapterTensorName name;
  std::string_view module = tensor;
  Consume("base_model.model.", &module);
  // The adapter's name within PEFT is cut off as it is saved; files of raw states have the default.
  const auto consume_half = [&module](std::string_view half) {
    return ConsumeEnd(std::string(half) + ".weight", &module) ||
           ConsumeEnd(std::string(half) + ".default.weight", &module);
  };
  name.is_a = consume_half(".lora_A");
  if (!name.is_a && !consume_half(".lora_B")) {
    return MakeError("{}: tensor '{}': {}", file, shown, ForeignKind(tensor));
  }
  name.module = module;
  module = StripTensorPrefix(module);
  Consume("language_model.", &module);
  if (IsTowerTensor(module)) {
    return MakeError(
        "{}: tensor '{}' belongs to the image or audio encoder; only adapters of the text decoder "
        "are supported",
        file, shown);
  }
  if (module == "lm_head" || module == "embed_tokens" || module == "embed_tokens_per_layer") {
    return MakeError("{}: tensor '{}': deltas of the embeddings and the head are not supported",
                     file, shown);
  }
  if (!ParseModule(module, &name)) {
    return MakeError("{}: tensor '{}' belongs to no module of a Gemma 4 decoder", file, shown);
  }
  return name;
}

}  // namespace lapidary
