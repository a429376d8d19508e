// A config.json from anywhere, a model's or an assistant's: a sentence, or a plan whose tensors,
// sizes and KV layout are sound.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "kv/kv_layout.h"
#include "model/footprint.h"
#include "model/plan.h"
#include "model/tensor_specs.h"

namespace {

void CheckPlan(const lapidary::ModelPlan& plan) {
  for (const lapidary::LayerPlan& layer : plan.layers) {
    CHECK_EQ(layer.num_heads % layer.num_kv_heads, 0);
    CHECK_LE(2 * layer.rope.num_rotary_pairs, layer.head_dim);
    CHECK_LE(layer.kv_layer, layer.index);
    CHECK(plan.layers[layer.kv_layer].owns_kv());
    CHECK_LE(layer.kv_entry.key_offset + layer.kv_entry.key_len, layer.kv_entry.entry_len);
    CHECK_LE(layer.kv_entry.value_len, layer.kv_entry.entry_len);
  }
  for (const float frequency : plan.layers.back().rope.Frequencies()) {
    CHECK(std::isfinite(frequency));
  }
  int64_t total = 0;
  for (const lapidary::TensorSpec& spec : lapidary::RequiredTensors(plan)) {
    CHECK_GT(spec.num_elements(), 0) << spec.name;
    total += spec.num_elements();
  }
  const lapidary::Footprint footprint = lapidary::MakeFootprint(plan);
  CHECK_EQ(footprint.total(), total);
  CHECK(footprint.read_per_token > 0 && footprint.read_per_token <= total);
  const lapidary::KvLayout layout = lapidary::MakeKvLayout(plan, lapidary::KvFormat::kBF16);
  CHECK_GT(layout.page_bytes, 0);
  for (const int64_t wasted : layout.wasted_bytes) {
    CHECK(wasted >= 0 && wasted <= layout.page_bytes) << wasted;
  }
}

void CheckAssistant(const lapidary::AssistantConfig& config) {
  const lapidary::AssistantPlan plan = lapidary::MakeAssistantPlan(config);
  for (const lapidary::TensorSpec& spec : lapidary::RequiredTensors(plan)) {
    CHECK_GT(spec.num_elements(), 0) << spec.name;
  }
  if (plan.ordered_head) {
    CHECK_GT(plan.tokens_per_centroid(), 0);
    CHECK_LE(plan.ordered_head->top_k, plan.ordered_head->num_centroids);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto json = lapidary::ParseJson(text, "fuzz.json"); json.ok()) {
    const auto assistant = lapidary::ParseAssistantConfig(*json, "fuzz.json");
    if (assistant.ok()) CheckAssistant(*assistant);
    CHECK(assistant.ok() || assistant.error().message.size() < 2000u);
  }
  const auto config = lapidary::ParseModelConfig(text, "fuzz.json");
  if (!config.ok()) {
    CHECK(config.error().message.starts_with("fuzz.json: "));
    CHECK_LT(config.error().message.size(), 2000u);
    return 0;
  }
  const auto plan = lapidary::MakeModelPlan(*config);
  if (plan.ok()) CheckPlan(*plan);
  return 0;
}
