// The facts of every layer of the published checkpoints, and the rules they come from.
#include "model/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "model/presets.h"
#include "model/tensor_specs.h"
#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

Json TinyConfig() { return *PresetConfig("tiny-e"); }

ModelPlan PresetPlan(const std::string& name) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(name), name).value()).value();
}

struct PublishedFacts {
  const char* preset;
  int hidden_size;
  int num_layers;
  int pattern;
  int window;
  int max_context;
  int q_rows[kNumKvGroups];
  int k_rows[kNumKvGroups];
  int mlp_width;
  int mlp_width_shared;
  int first_shared;
  int donors[kNumKvGroups];
  bool k_is_v;
  int num_tensors;
};

constexpr PublishedFacts kFacts[] = {
    {"e2b",
     1536,
     35,
     5,
     512,
     131072,
     {2048, 4096},
     {256, 512},
     6144,
     12288,
     15,
     {13, 14},
     false,
     600},
    {"e4b",
     2560,
     42,
     6,
     512,
     131072,
     {2048, 4096},
     {512, 1024},
     10240,
     10240,
     24,
     {22, 23},
     false,
     719},
    {"12b",
     3840,
     48,
     6,
     1024,
     262144,
     {4096, 8192},
     {2048, 512},
     15360,
     15360,
     48,
     {-1, -1},
     true,
     666},
    {"26b-a4b",
     2816,
     30,
     6,
     1024,
     262144,
     {4096, 8192},
     {2048, 1024},
     2112,
     2112,
     30,
     {-1, -1},
     true,
     657},
    {"31b",
     5376,
     60,
     6,
     1024,
     262144,
     {8192, 16384},
     {4096, 2048},
     21504,
     21504,
     60,
     {-1, -1},
     true,
     832},
};

class PublishedPlan : public testing::TestWithParam<PublishedFacts> {};

TEST_P(PublishedPlan, HasTheSpecifiedLayers) {
  const PublishedFacts& facts = GetParam();
  const ModelPlan plan = PresetPlan(facts.preset);
  EXPECT_EQ(plan.vocab_size, 262144);
  EXPECT_EQ(plan.hidden_size, facts.hidden_size);
  EXPECT_EQ(plan.max_context, facts.max_context);
  EXPECT_EQ(plan.rms_norm_eps, 1e-6f);
  EXPECT_EQ(plan.logit_softcap, 30.0f);
  EXPECT_EQ(plan.embedding_scale, std::sqrt(static_cast<float>(facts.hidden_size)));
  EXPECT_EQ(plan.first_kv_shared_layer, facts.first_shared);
  ASSERT_EQ(static_cast<int>(plan.layers.size()), facts.num_layers);
  for (const LayerPlan& layer : plan.layers) {
    const bool is_full = layer.index % facts.pattern == facts.pattern - 1;
    const bool is_shared = layer.index >= facts.first_shared;
    const int group = is_full ? kFullGroup : kSlidingGroup;
    ASSERT_EQ(layer.kind, is_full ? AttentionKind::kFull : AttentionKind::kSliding) << layer.index;
    EXPECT_EQ(layer.head_dim, is_full ? 512 : 256);
    EXPECT_EQ(layer.num_heads * layer.head_dim, facts.q_rows[group]);
    EXPECT_EQ(layer.num_kv_heads * layer.head_dim, facts.k_rows[group]);
    EXPECT_EQ(layer.window, is_full ? 0 : facts.window);
    EXPECT_EQ(layer.mlp_width, is_shared ? facts.mlp_width_shared : facts.mlp_width);
    EXPECT_EQ(layer.kv_layer, is_shared ? facts.donors[group] : layer.index);
    EXPECT_EQ(layer.k_is_v, is_full && facts.k_is_v);
    EXPECT_EQ(layer.rope.head_dim, layer.head_dim);
    EXPECT_EQ(layer.rope.theta, is_full ? 1e6 : 1e4);
    EXPECT_EQ(layer.rope.num_rotary_pairs, is_full ? 64 : 128);
    EXPECT_EQ(layer.kv_entry.value_len, layer.head_dim);
    EXPECT_EQ(layer.kv_entry.entry_len, layer.k_is_v ? 640 : 2 * layer.head_dim);
    EXPECT_EQ(layer.has_moe, std::string(facts.preset) == "26b-a4b");
  }
  EXPECT_EQ(plan.layers.back().kind, AttentionKind::kFull);
}

// The table counts the tensors of the published files: there the layers that share KV carry k_proj,
// v_proj and k_norm of their own, which nothing reads.
TEST_P(PublishedPlan, HasTheSpecifiedTensorCount) {
  const ModelPlan plan = PresetPlan(GetParam().preset);
  const auto required = RequiredTensors(plan);
  const auto unused = UnusedSharedKvTensors(plan);
  EXPECT_EQ(static_cast<int>(required.size() + unused.size()), GetParam().num_tensors);
  EXPECT_EQ(static_cast<int>(unused.size()), 3 * (plan.num_layers - plan.first_kv_shared_layer));
  std::set<std::string> names;
  for (const auto* specs : {&required, &unused}) {
    for (const TensorSpec& spec : *specs) EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
  }
  EXPECT_TRUE(names.contains("layers.0.layer_scalar"));
  EXPECT_FALSE(names.contains("lm_head.weight"));
}

INSTANTIATE_TEST_SUITE_P(All, PublishedPlan, testing::ValuesIn(kFacts), [](const auto& row) {
  std::string name = row.param.preset;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(ModelPlan, ShapesOfTheNamedTensorsAreThoseOfTheSpecification) {
  std::map<std::string, std::string> shapes;
  for (const char* preset : {"e2b", "26b-a4b"}) {
    for (const TensorSpec& spec : RequiredTensors(PresetPlan(preset))) {
      shapes[fmt::format("{} {}", preset, spec.name)] = ShapeToString(spec.shape);
    }
  }
  EXPECT_EQ(shapes["e2b embed_tokens_per_layer.weight"], "[262144, 8960]");
  EXPECT_EQ(shapes["e2b per_layer_model_projection.weight"], "[8960, 1536]");
  EXPECT_EQ(shapes["e2b per_layer_projection_norm.weight"], "[256]");
  EXPECT_EQ(shapes["e2b layers.14.self_attn.k_proj.weight"], "[512, 1536]");
  EXPECT_EQ(shapes["e2b layers.14.mlp.gate_proj.weight"], "[6144, 1536]");
  EXPECT_EQ(shapes["e2b layers.15.mlp.down_proj.weight"], "[1536, 12288]");
  EXPECT_EQ(shapes.count("e2b layers.15.self_attn.k_proj.weight"), 0u);
  EXPECT_EQ(shapes.count("e2b layers.15.self_attn.k_norm.weight"), 0u);
  EXPECT_EQ(shapes["e2b layers.3.per_layer_input_gate.weight"], "[256, 1536]");
  EXPECT_EQ(shapes["e2b layers.3.per_layer_projection.weight"], "[1536, 256]");
  EXPECT_EQ(shapes["26b-a4b layers.0.experts.gate_up_proj"], "[128, 1408, 2816]");
  EXPECT_EQ(shapes["26b-a4b layers.0.experts.down_proj"], "[128, 2816, 704]");
  EXPECT_EQ(shapes["26b-a4b layers.0.router.proj.weight"], "[128, 2816]");
  EXPECT_EQ(shapes["26b-a4b layers.0.router.per_expert_scale"], "[128]");
  EXPECT_EQ(shapes["26b-a4b layers.4.self_attn.v_proj.weight"], "[2048, 2816]");
  EXPECT_EQ(shapes.count("26b-a4b layers.5.self_attn.v_proj.weight"), 0u);
  EXPECT_EQ(shapes["26b-a4b layers.5.self_attn.k_norm.weight"], "[512]");
  EXPECT_EQ(shapes["26b-a4b layers.5.layer_scalar"], "[1]");
}

TEST(RopePlan, FrequenciesFollowTheSpecification) {
  const ModelPlan plan = PresetPlan("31b");
  const std::vector<float> sliding = plan.layers[0].rope.Frequencies();
  const std::vector<float> full = plan.layers[5].rope.Frequencies();
  ASSERT_EQ(sliding.size(), 128u);
  ASSERT_EQ(full.size(), 64u);
  // The exponent, the power and the reciprocal each round once: three half-ulps; the exponent's own
  // rounding moves the power by ln(theta) times as much.
  const double eps = std::numeric_limits<float>::epsilon();
  for (int j = 0; j < 128; ++j) {
    const double expected = std::pow(1e4, -2.0 * j / 256);
    EXPECT_NEAR(sliding[j], expected, expected * eps * (1 + 0.5 * std::log(1e4))) << j;
  }
  for (int j = 0; j < 64; ++j) {
    const double expected =
        std::pow(1e6, -2.0 * j / 512);  // 512: the whole head, not the rotary part
    EXPECT_NEAR(full[j], expected, expected * eps * (1 + 0.5 * std::log(1e6))) << j;
  }
  EXPECT_EQ(full[0], 1.0f);
}

TEST(RopePlan, FactorDividesTheFrequenciesAndPartialFactorRoundsDown) {
  Json config = TinyConfig();
  config["rope_parameters"]["full_attention"]["factor"] = 8.0;
  config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.3;
  const ModelPlan plan = MakeModelPlan(*ParseModelConfig(config, "t")).value();
  const RopePlan& rope = plan.layers.back().rope;
  EXPECT_EQ(rope.num_rotary_pairs, 76);  // floor(0.3 * 512 / 2)
  EXPECT_EQ(rope.Frequencies()[0], 0.125f);
}

TEST(ModelPlan, StoresKIsVOnceOnlyWhereSomeDimsAreNotRotary) {
  Json config = *PresetConfig("tiny-dense");
  config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 1.0;
  ModelPlan plan = MakeModelPlan(*ParseModelConfig(config, "t")).value();
  EXPECT_EQ(plan.layers.back().kv_entry, (KvEntryPlan{512, 512, 512, 1024}));
  config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.0;
  plan = MakeModelPlan(*ParseModelConfig(config, "t")).value();
  EXPECT_EQ(plan.layers.back().kv_entry, (KvEntryPlan{512, 0, 512, 512}));
  plan = PresetPlan("tiny-dense");
  EXPECT_EQ(plan.layers.back().kv_entry, (KvEntryPlan{512, 128, 512, 640}));
}

TEST(ModelPlan, DonorIsTheLastLayerOfTheKindBelowTheFirstSharedOne) {
  const ModelPlan plan = PresetPlan("tiny-e");  // SSF SSF SSF, sharing from 5 on
  std::vector<int> readers;
  for (const LayerPlan& layer : plan.layers) readers.push_back(layer.kv_layer);
  EXPECT_THAT(readers, testing::ElementsAre(0, 1, 2, 3, 4, 2, 4, 4, 2));
  EXPECT_THAT(plan.kv_groups[kSlidingGroup].layers, testing::ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(plan.kv_groups[kFullGroup].layers, testing::ElementsAre(2));
}

TEST(ModelPlan, RefusesSharingWithoutADonorOrWithAnotherShape) {
  Json config = TinyConfig();
  config["num_kv_shared_layers"] = 7;  // layers 0 and 1 are both sliding
  auto plan = MakeModelPlan(*ParseModelConfig(config, "t"));
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.error().message, HasSubstr("layer 2 needs a full layer below layer 2"));

  config = TinyConfig();
  config["per_layer_config"] = {{"2", {{"head_dim", 512}}}, {"5", {{"head_dim", 512}}}};
  plan = MakeModelPlan(*ParseModelConfig(config, "t"));
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.error().message, HasSubstr("layer 8 shares the KV of layer 2, but their head"));
}

}  // namespace
}  // namespace lapidary
