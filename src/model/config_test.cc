#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "model/footprint.h"
#include "model/plan.h"
#include "model/presets.h"
#include "model/tensor_specs.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

Json& TextPart(Json& config) {
  return config.contains("text_config") ? config["text_config"] : config;
}

// Every derived fact in words, so that plans can be compared whole.
std::string Describe(const Json& json) {
  const auto config = ParseModelConfig(json, "config.json");
  if (!config.ok()) return "error: " + config.error().message;
  const auto plan = MakeModelPlan(*config);
  if (!plan.ok()) return "error: " + plan.error().message;
  std::string text = fmt::format(
      "vocab {} hidden {} context {} eps {} softcap {} shared from {} ple {} experts {}\n",
      plan->vocab_size, plan->hidden_size, plan->max_context, plan->rms_norm_eps,
      plan->logit_softcap, plan->first_kv_shared_layer,
      plan->ple ? fmt::format("{}x{}", plan->ple->vocab_size, plan->ple->width) : "none",
      plan->moe ? fmt::format("{} of {} by {}", plan->moe->top_k, plan->moe->num_experts,
                              plan->moe->expert_width)
                : "none");
  for (const LayerPlan& layer : plan->layers) {
    text += fmt::format(
        "{} {} {}x{} kv {} window {} reads {} k_is_v {} entry {}+{} of {} mlp {} rope {} {} {} "
        "{}\n",
        layer.index, AttentionKindName(layer.kind), layer.num_heads, layer.head_dim,
        layer.num_kv_heads, layer.window, layer.kv_layer, layer.k_is_v, layer.kv_entry.key_offset,
        layer.kv_entry.key_len, layer.kv_entry.entry_len, layer.mlp_width, layer.rope.head_dim,
        layer.rope.num_rotary_pairs, layer.rope.theta, layer.rope.factor);
  }
  return text;
}

// The schema of transformers >= 5.15: overrides per layer, keys zero-padded to equal width, values
// equal to the global ones left out.
Json WithPerLayerConfig(Json config) {
  Json& text = TextPart(config);
  const int num_layers = text["num_hidden_layers"];
  const int width = static_cast<int>(std::to_string(num_layers - 1).size());
  Json per_layer = Json::object();
  for (int layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    if (text["layer_types"][layer_idx] != "full_attention") continue;
    Json overrides = Json::object();
    if (text["global_head_dim"] != text["head_dim"]) {
      overrides["head_dim"] = text["global_head_dim"];
    }
    if (!text["num_global_key_value_heads"].is_null() &&
        text["num_global_key_value_heads"] != text["num_key_value_heads"]) {
      overrides["num_key_value_heads"] = text["num_global_key_value_heads"];
    }
    if (!overrides.empty()) per_layer[fmt::format("{:0{}}", layer_idx, width)] = overrides;
  }
  text["per_layer_config"] = per_layer;
  text.erase("global_head_dim");
  text.erase("num_global_key_value_heads");
  return config;
}

TEST(ModelConfig, BothSchemasGiveTheSamePlanForEveryPreset) {
  for (const std::string& preset : PresetNames()) {
    const Json flat = *PresetConfig(preset);
    const std::string expected = Describe(flat);
    EXPECT_THAT(expected, testing::Not(HasSubstr("error")));
    EXPECT_EQ(Describe(WithPerLayerConfig(flat)), expected) << preset;
  }
  const Json e2b = WithPerLayerConfig(*PresetConfig("e2b"));
  EXPECT_TRUE(e2b["text_config"]["per_layer_config"].contains("04"));
}

TEST(ModelConfig, NestedAndTextOnlyFilesGiveTheSamePlan) {
  for (const std::string& preset : PresetNames()) {
    Json nested = *PresetConfig(preset);
    Json text_only = TextPart(nested);
    const bool unified = TextPart(nested)["model_type"] == "gemma4_unified_text";
    text_only["architectures"] = {unified ? "Gemma4UnifiedForCausalLM" : "Gemma4ForCausalLM"};
    EXPECT_EQ(Describe(text_only), Describe(nested)) << preset;
  }
}

TEST(ModelConfig, FlatKeysDoNotCountBesideAnyPerLayerConfig) {
  Json config = *PresetConfig("tiny-dense");
  Json same_dims = config;
  same_dims["global_head_dim"] = same_dims["head_dim"];
  same_dims["num_global_key_value_heads"] = same_dims["num_key_value_heads"];
  config["per_layer_config"] = Json::object();
  EXPECT_EQ(Describe(config), Describe(same_dims));
  config["per_layer_config"] = nullptr;  // null counts as absent
  EXPECT_EQ(Describe(config), Describe(*PresetConfig("tiny-dense")));
}

TEST(ModelConfig, PerLayerOverridesApplyToTheNamedLayerAlone) {
  Json config = *PresetConfig("tiny-dense");
  config["per_layer_config"] = {{"02", {{"head_dim", 128}}}, {"5", {{"num_key_value_heads", 4}}}};
  const ModelConfig parsed = ParseModelConfig(config, "t").value();
  EXPECT_THAT(parsed.head_dims, testing::ElementsAre(256, 256, 128, 256, 256, 256));
  EXPECT_THAT(parsed.num_kv_heads, testing::ElementsAre(2, 2, 2, 2, 2, 4));
}

TEST(ModelConfig, GlobalKvHeadsCountOnlyWhereKIsV) {
  Json config = *PresetConfig("tiny-dense");
  ASSERT_EQ(ParseModelConfig(config, "t")->num_kv_heads.back(), 1);
  config["attention_k_eq_v"] = false;
  EXPECT_EQ(ParseModelConfig(config, "t")->num_kv_heads.back(), 2);
}

TEST(ModelConfig, AppliesTheDefaultsOfTheReference) {
  Json config = *PresetConfig("tiny-e");
  for (const char* key :
       {"global_head_dim", "head_dim", "layer_types", "rope_parameters", "final_logit_softcapping",
        "num_kv_shared_layers", "use_double_wide_mlp", "attention_k_eq_v", "sliding_window",
        "max_position_embeddings", "rms_norm_eps", "hidden_size_per_layer_input",
        "vocab_size_per_layer_input", "enable_moe_block", "model_type"}) {
    config.erase(key);
  }
  const auto parsed = ParseModelConfig(config, "t");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_THAT(parsed->head_dims, testing::ElementsAre(256, 256, 256, 256, 256, 512, 256, 256, 512));
  EXPECT_EQ(parsed->final_logit_softcap, 0.0);
  EXPECT_EQ(parsed->rms_norm_eps, 1e-6);
  EXPECT_EQ(parsed->ple_width, 256);
  EXPECT_EQ(parsed->ple_vocab_size, 262144);
  EXPECT_EQ(parsed->sliding_window, 512);
  EXPECT_FALSE(parsed->moe);
  EXPECT_EQ(parsed->sliding_rope.theta, 1e4);
  EXPECT_FALSE(parsed->sliding_rope.proportional);
  EXPECT_EQ(parsed->full_rope.theta, 1e6);
  EXPECT_TRUE(parsed->full_rope.proportional);
  EXPECT_EQ(parsed->full_rope.partial_rotary_factor, 0.25);
}

TEST(ModelConfig, MissingLayerTypesMeanEverySixthIsFullAndTheLastAlways) {
  Json config = *PresetConfig("tiny-dense");
  config.erase("layer_types");
  config["num_hidden_layers"] = 14;
  const ModelConfig parsed = ParseModelConfig(config, "t").value();
  for (int layer_idx = 0; layer_idx < 14; ++layer_idx) {
    const bool is_full = layer_idx == 5 || layer_idx == 11 || layer_idx == 13;
    EXPECT_EQ(parsed.layer_kinds[layer_idx],
              is_full ? AttentionKind::kFull : AttentionKind::kSliding);
  }
}

TEST(ModelConfig, TheLastLayerIsFullWhateverTheFileSays) {
  Json config = *PresetConfig("tiny-dense");
  const std::string expected = Describe(config);
  config["layer_types"].back() = "sliding_attention";
  EXPECT_EQ(Describe(config), expected);
}

TEST(ModelConfig, UnifiedConfigsHaveNoPerLayerEmbeddingsUnlessTheySaySo) {
  Json config = *PresetConfig("12b");
  EXPECT_FALSE(config["text_config"].contains("hidden_size_per_layer_input"));
  EXPECT_EQ(ParseModelConfig(config, "t")->ple_width, 0);
  config["architectures"] = {"Gemma4ForConditionalGeneration"};  // the text part still says unified
  EXPECT_EQ(ParseModelConfig(config, "t")->ple_width, 0);
  config["text_config"]["model_type"] = "gemma4_text";
  EXPECT_EQ(ParseModelConfig(config, "t")->ple_width, 256);
}

TEST(ModelConfig, IntegralFloatsCountAsIntegers) {
  Json config = *PresetConfig("tiny-dense");
  const std::string expected = Describe(config);
  config["hidden_size"] = 96.0;
  EXPECT_EQ(Describe(config), expected);
}

struct NumericField {
  const char* key;
  bool is_required = true;
  std::vector<const char*> accepted = {};  // of the odd values below
};

TEST(ModelConfig, EveryNumericFieldRefusesNonsense) {
  const std::vector<NumericField> fields = {
      {"vocab_size"},
      {"hidden_size"},
      {"num_hidden_layers"},
      {"num_attention_heads"},
      {"num_key_value_heads"},
      {"intermediate_size"},
      {"head_dim", false},
      {"global_head_dim", false},
      {"num_global_key_value_heads", false},
      {"max_position_embeddings", false},
      {"sliding_window", false},
      {"rms_norm_eps", false, {"0"}},
      {"final_logit_softcapping", false, {"0", "1.5"}},
      {"num_kv_shared_layers", false, {"0"}},
      {"hidden_size_per_layer_input", false, {"0"}},
      {"num_experts"},
      {"top_k_experts"},
      {"moe_intermediate_size"},
  };
  for (const NumericField& field : fields) {
    for (const char* value : {"0", "-1", "1000000000000", "9223372036854775808", "1e200", "1.5",
                              "\"8\"", "[]", "{}", "true"}) {
      Json config = *PresetConfig("tiny-moe");
      config[field.key] = Json::parse(value);
      const std::string description = Describe(config);
      const bool is_accepted =
          std::count(field.accepted.begin(), field.accepted.end(), std::string_view(value)) > 0;
      if (is_accepted) {
        EXPECT_THAT(description, testing::Not(HasSubstr("error"))) << field.key << " " << value;
      } else {
        EXPECT_THAT(description, testing::StartsWith("error: config.json: "))
            << field.key << " " << value;
        EXPECT_THAT(description, HasSubstr(field.key)) << field.key << " " << value;
      }
    }
    for (const bool is_null : {true, false}) {
      Json config = *PresetConfig("tiny-moe");
      if (is_null) {
        config[field.key] = nullptr;
      } else {
        config.erase(field.key);
      }
      // What tiny-moe shares: 2 KV heads for 1, head dims and PLE by default.
      if (std::string_view(field.key) == "hidden_size_per_layer_input") {
        config["vocab_size_per_layer_input"] = 262144;
      }
      if (field.is_required) {
        EXPECT_EQ(Describe(config), fmt::format("error: config.json: {} is missing", field.key));
      } else {
        EXPECT_THAT(Describe(config), testing::Not(HasSubstr("error"))) << field.key;
      }
    }
  }
}

TEST(ModelConfig, RopeParametersAreChecked) {
  const auto with = [](const char* kind, const char* key, const char* value) {
    Json config = *PresetConfig("tiny-dense");
    config["rope_parameters"][kind][key] = Json::parse(value);
    return Describe(config);
  };
  for (const char* kind : {"sliding_attention", "full_attention"}) {
    for (const char* value : {"0", "-1", "1e300", "\"x\"", "[]"}) {
      EXPECT_THAT(with(kind, "rope_theta", value), HasSubstr("rope_theta")) << value;
      EXPECT_THAT(with(kind, "factor", value), HasSubstr("factor")) << value;
    }
    for (const char* value : {"-1", "1.5", "1e300", "\"x\"", "[]"}) {
      EXPECT_THAT(with(kind, "partial_rotary_factor", value), HasSubstr("partial_rotary_factor"));
    }
    EXPECT_THAT(with(kind, "rope_type", "\"yarn\""), HasSubstr("rope_type 'yarn'"));
    Json config = *PresetConfig("tiny-dense");
    config["rope_parameters"].erase(kind);
    EXPECT_THAT(Describe(config), HasSubstr(fmt::format("no entry {}", kind)));
    config["rope_parameters"][kind] = 3;
    EXPECT_THAT(Describe(config), testing::StartsWith("error"));
  }
  EXPECT_THAT(with("sliding_attention", "factor", "2"), HasSubstr("need rope_type 'proportional'"));
  EXPECT_THAT(with("sliding_attention", "partial_rotary_factor", "0.5"),
              HasSubstr("need rope_type 'proportional'"));
}

// The error of tiny-moe after one change.
std::string ErrorWith(const char* key, const Json& value) {
  Json config = *PresetConfig("tiny-moe");
  config[key] = value;
  return Describe(config);
}

TEST(ModelConfig, RefusesWhatIsNoGemma4) {
  EXPECT_THAT(ErrorWith("architectures", {"LlamaForCausalLM"}), HasSubstr("is not Gemma 4"));
  EXPECT_THAT(ErrorWith("architectures", Json::array()), HasSubstr("is not Gemma 4"));
  EXPECT_THAT(ErrorWith("architectures", nullptr), HasSubstr("is not Gemma 4"));
  EXPECT_THAT(ErrorWith("architectures", 7), HasSubstr("architectures must be a list"));
  EXPECT_THAT(ErrorWith("architectures", {"Gemma4AssistantForCausalLM"}),
              HasSubstr("drafting assistant"));
  EXPECT_THAT(ErrorWith("architectures", {"Gemma4UnifiedAssistantForCausalLM"}),
              HasSubstr("drafting assistant"));
  EXPECT_THAT(ErrorWith("architectures", {std::string(100000, 'A')}).size(), testing::Lt(600u));
  EXPECT_EQ(Describe(Json::array()), "error: config.json: expected a JSON object");
}

TEST(ModelConfig, RefusesWhatWouldSilentlyChangeTheResult) {
  EXPECT_THAT(ErrorWith("quantization_config", {{"bits", 4}}), HasSubstr("quantised checkpoints"));
  Json nested = *PresetConfig("e2b");
  nested["text_config"]["quantization_config"] = {{"bits", 4}};
  EXPECT_THAT(Describe(nested), HasSubstr("quantised checkpoints"));
  EXPECT_THAT(ErrorWith("quantization_config", {{"quant_method", "gptq"}}),
              HasSubstr("quantised checkpoints of gptq"));
  EXPECT_THAT(ErrorWith("quantization_config", {{"quant_method", "modelopt"}}),
              testing::Not(HasSubstr("error")));
  EXPECT_THAT(ErrorWith("quantization_config", {{"quant_method", 3}}),
              HasSubstr("quantised checkpoints of an unknown method"));
  EXPECT_THAT(ErrorWith("hidden_activation", "gelu"), HasSubstr("hidden_activation 'gelu'"));
  EXPECT_THAT(ErrorWith("attention_bias", true), HasSubstr("attention_bias"));
  EXPECT_THAT(ErrorWith("use_bidirectional_attention", "all"), HasSubstr("use_bidirectional"));
  EXPECT_THAT(ErrorWith("use_bidirectional_attention", "vision"), testing::Not(HasSubstr("error")));
}

TEST(ModelConfig, RefusesLayersThatDoNotFitTogether) {
  EXPECT_THAT(ErrorWith("layer_types", {"full_attention"}), HasSubstr("has 1 entries"));
  EXPECT_THAT(ErrorWith("layer_types", {"full_attention", 3}), HasSubstr("list of strings"));
  Json six = Json::array({"a", "b", "c", "d", "e", "f"});
  EXPECT_THAT(ErrorWith("layer_types", six), HasSubstr("layer_types[0] is 'a'"));
  EXPECT_THAT(ErrorWith("num_hidden_layers", 1025), HasSubstr("num_hidden_layers = 1025"));
  EXPECT_THAT(ErrorWith("head_dim", 255), HasSubstr("head_dim 255 is odd"));
  EXPECT_THAT(ErrorWith("global_head_dim", 511), HasSubstr("head_dim 511 is odd"));
  EXPECT_THAT(ErrorWith("num_key_value_heads", 3), HasSubstr("do not divide into 3 KV heads"));
  EXPECT_THAT(ErrorWith("num_global_key_value_heads", 8), HasSubstr("do not divide into 8"));
  EXPECT_THAT(ErrorWith("num_kv_shared_layers", 6), HasSubstr("num_kv_shared_layers"));
  EXPECT_THAT(ErrorWith("num_kv_shared_layers", 5),
              HasSubstr("layer 2 needs a full layer below layer 1"));
  EXPECT_THAT(ErrorWith("top_k_experts", 17), HasSubstr("top_k_experts = 17"));
  EXPECT_THAT(ErrorWith("moe_intermediate_size", 1 << 20), HasSubstr("is beyond"));
  EXPECT_THAT(ErrorWith("enable_moe_block", "yes"), HasSubstr("enable_moe_block"));
  Json small_table = *PresetConfig("tiny-e");
  small_table["vocab_size_per_layer_input"] = 511;
  EXPECT_THAT(Describe(small_table), HasSubstr("vocab_size_per_layer_input 511 is below"));
}

TEST(ModelConfig, RefusesBadPerLayerConfigs) {
  const auto with = [](Json per_layer) { return ErrorWith("per_layer_config", per_layer); };
  const Json fine = {{"head_dim", 512}};
  for (const char* key : {"6", "-1", "", "x", "2x", " 2", "99999999999999999999", "0x2", "2.0"}) {
    EXPECT_THAT(with({{key, fine}}), HasSubstr("per_layer_config names layer")) << key;
  }
  EXPECT_THAT(with({{"2", fine}, {"02", fine}}), HasSubstr("names layer 2 twice"));
  EXPECT_THAT(with({{"2", 3}}), HasSubstr("per_layer_config.2: expected a JSON object"));
  EXPECT_THAT(with({{"2", {{"window", 3}}}}), HasSubstr("override 'window' is not supported"));
  EXPECT_THAT(with({{"2", {{"head_dim", 3}}}}), HasSubstr("head_dim 3 is odd"));
  EXPECT_THAT(with({{"2", {{"head_dim", 0}}}}), HasSubstr("head_dim = 0"));
  EXPECT_THAT(with({{"2", {{"num_key_value_heads", 3}}}}), HasSubstr("divide into 3 KV heads"));
  EXPECT_THAT(with(Json::array()), HasSubstr("per_layer_config must be an object"));
}

// What any accepted config must satisfy, however odd.
void CheckSound(const ModelPlan& plan) {
  ASSERT_EQ(static_cast<int>(plan.layers.size()), plan.num_layers);
  for (const LayerPlan& layer : plan.layers) {
    ASSERT_GT(layer.num_kv_heads, 0);
    ASSERT_EQ(layer.num_heads % layer.num_kv_heads, 0);
    ASSERT_LE(2 * layer.rope.num_rotary_pairs, layer.head_dim);
    ASSERT_LE(layer.kv_layer, layer.index);
    ASSERT_TRUE(plan.layers[layer.kv_layer].owns_kv());
    ASSERT_EQ(plan.layers[layer.kv_layer].kv_entry, layer.kv_entry);
    ASSERT_LE(layer.kv_entry.key_offset + layer.kv_entry.key_len, layer.kv_entry.entry_len);
    for (const float frequency : layer.rope.Frequencies()) ASSERT_TRUE(std::isfinite(frequency));
  }
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    for (const int64_t dim : spec.shape) ASSERT_GT(dim, 0) << spec.name;
  }
  const Footprint footprint = MakeFootprint(plan);
  ASSERT_GT(footprint.total(), 0);
  ASSERT_LE(footprint.read_per_token, footprint.total());
  ASSERT_GT(footprint.read_per_token, 0);
}

TEST(ModelConfig, RandomlyChangedConfigsGiveASoundPlanOrASentence) {
  std::mt19937 random(4);
  const std::vector<Json> values = {nullptr,
                                    true,
                                    false,
                                    0,
                                    1,
                                    2,
                                    3,
                                    -1,
                                    7,
                                    8,
                                    255,
                                    256,
                                    1024,
                                    4096,
                                    1 << 20,
                                    1 << 24,
                                    INT32_MAX,
                                    INT64_MIN,
                                    INT64_MAX,
                                    UINT64_MAX,
                                    0.25,
                                    0.5,
                                    1e-7,
                                    1e30,
                                    -1e300,
                                    "",
                                    "x",
                                    "full_attention",
                                    Json::array(),
                                    Json::object(),
                                    Json::array({"full_attention"}),
                                    {{"head_dim", 2}}};
  int num_accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::vector<std::string> presets = PresetNames();
    Json config = *PresetConfig(presets[random() % presets.size()]);
    if (random() % 3 == 0) config = WithPerLayerConfig(config);
    for (int change = 1 + random() % 3; change > 0; --change) {
      // Walk down from the root a few steps and put something else there.
      Json* at = &config;
      while (at->is_structured() && !at->empty() && (at == &config || random() % 4 != 0)) {
        auto it = at->begin();
        std::advance(it, random() % at->size());
        at = &*it;
      }
      *at = values[random() % values.size()];
    }
    const auto parsed = ParseModelConfig(config, "config.json");
    if (!parsed.ok()) {
      ASSERT_THAT(parsed.error().message, testing::StartsWith("config.json: ")) << config;
      ASSERT_LT(parsed.error().message.size(), 700u);
      continue;
    }
    const auto plan = MakeModelPlan(*parsed);
    if (!plan.ok()) {
      ASSERT_FALSE(plan.error().message.empty());
      continue;
    }
    ++num_accepted;
    ASSERT_NO_FATAL_FAILURE(CheckSound(*plan)) << config;
  }
  EXPECT_GT(num_accepted, 500);  // Else the test looks at error paths alone.
}

TEST(Presets, AreFoundByNameAndNamedWhenMissing) {
  EXPECT_THAT(PresetNames(), testing::ElementsAre("e2b", "e4b", "12b", "26b-a4b", "31b", "tiny-e",
                                                  "tiny-moe", "tiny-dense"));
  EXPECT_TRUE(IsPreset("e2b"));
  EXPECT_FALSE(IsPreset("E2B"));
  EXPECT_THAT(PresetConfig("e3b").error().message, HasSubstr("no preset named 'e3b'; there are"));
}

}  // namespace
}  // namespace lapidary
