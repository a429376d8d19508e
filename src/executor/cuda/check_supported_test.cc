// What config.json can ask of the CUDA kernels that they cannot do is refused in one sentence, not
// met by a CHECK or in device memory.
#include "executor/cuda/check_supported.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "model/presets.h"

namespace lapidary::cuda {
namespace {

constexpr int kRows = 2048;

ModelPlan PlanOf(const Json& config) {
  return MakeModelPlan(ParseModelConfig(config, "test").value()).value();
}

struct Case {
  const char* name;
  const char* preset;                // a text-only one
  std::function<void(Json&)> limit;  // still supported; null: the preset itself is
  std::function<void(Json&)> refused;
  const char* sentence;
};

std::function<void(Json&)> Set(const char* key, Json value) {
  return [=](Json& config) { config[key] = value; };
}

std::function<void(Json&)> SetMany(Json values) {
  return [=](Json& config) { config.update(values); };
}

Json HeadsOf(int head_dim, int num_kv_heads) {
  return {{"head_dim", head_dim}, {"num_key_value_heads", num_kv_heads}};
}

Json Rope(double theta) { return {{"rope_type", "default"}, {"rope_theta", theta}}; }

const Case kCases[] = {
    {"HiddenOfWholeVectors", "tiny-dense", Set("hidden_size", 104), Set("hidden_size", 100),
     "a hidden size of 100 is not a multiple of 8"},
    {"HiddenOfANorm", "tiny-dense", Set("hidden_size", 12288), Set("hidden_size", 12296),
     "a hidden size of 12296 is no multiple of 8 up to 12288"},
    {"HiddenWithExperts", "tiny-moe", Set("hidden_size", 11264), Set("hidden_size", 11272),
     "a hidden size of 11272 is with experts no multiple of 8 up to 11264"},
    {"Vocabulary", "tiny-dense", Set("vocab_size", 4194304), Set("vocab_size", 4194305),
     "a vocabulary of 4194305 tokens, more than 4194304"},
    {"MlpWidth", "tiny-dense", Set("intermediate_size", 104), Set("intermediate_size", 100),
     "layer 0: a matrix of 96 x 100, not of rows of a multiple of 8"},
    {"HeadDim", "tiny-dense", Set("head_dim", 512), Set("head_dim", 128),
     "layer 0: heads of 128 dims, not 256 or 512"},
    {"RotaryDimsWhereKeysAreValues", "tiny-dense", nullptr,
     [](Json& config) {
       config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.5;
     },
     "layer 2: heads of 512 dims whose keys are their values but for 256 dims, not 512 and 128"},
    {"HeadsOfAKvHead", "tiny-dense",
     SetMany({{"num_attention_heads", 16}, {"num_key_value_heads", 1}}),
     SetMany({{"num_attention_heads", 32}, {"num_key_value_heads", 1}}),
     "layer 0: 32 query heads for one KV head, more than 16"},
    {"KvHeadsOfAKind", "tiny-dense",
     Set("per_layer_config", {{"2", HeadsOf(512, 4)}, {"5", HeadsOf(512, 4)}}),
     Set("per_layer_config", {{"2", HeadsOf(512, 2)}, {"5", HeadsOf(512, 4)}}),
     "layer 5: 4 KV heads of 512 dims, but layer 2, of full attention too, has 2 of 512"},
    {"HeadDimsOfAKind", "tiny-dense",
     SetMany(
         {{"rope_parameters", {{"full_attention", Rope(1e4)}, {"sliding_attention", Rope(1e4)}}},
          {"per_layer_config", {{"2", HeadsOf(512, 1)}, {"5", HeadsOf(512, 1)}}}}),
     SetMany(
         {{"rope_parameters", {{"full_attention", Rope(1e4)}, {"sliding_attention", Rope(1e4)}}},
          {"per_layer_config", {{"2", HeadsOf(256, 1)}, {"5", HeadsOf(512, 1)}}}}),
     "layer 5: 1 KV heads of 512 dims, but layer 2, of full attention too, has 1 of 256"},
    {"RotaryTables", "tiny-dense", nullptr,
     Set("per_layer_config", {{"2", HeadsOf(256, 1)}, {"5", HeadsOf(512, 1)}}),
     "there are 3 kinds of rotary embedding, and at most 2 may differ"},
    {"PerLayerWidthOfWholeVectors", "tiny-e", Set("hidden_size_per_layer_input", 8),
     Set("hidden_size_per_layer_input", 12),
     "per-layer embeddings of width 12 are no multiple of 8 up to 256"},
    {"PerLayerWidth", "tiny-e", Set("hidden_size_per_layer_input", 256),
     Set("hidden_size_per_layer_input", 264),
     "per-layer embeddings of width 264 are no multiple of 8 up to 256"},
    {"Experts", "tiny-moe", Set("num_experts", 256), Set("num_experts", 257),
     "257 experts, more than 256"},
    {"ExpertsOfARow", "tiny-moe", Set("top_k_experts", 16),
     SetMany({{"num_experts", 20}, {"top_k_experts", 17}}),
     "17 of 20 experts at a time, more than 16"},
    {"ExpertWidth", "tiny-moe", Set("moe_intermediate_size", 24), Set("moe_intermediate_size", 20),
     "experts of width 20, not a multiple of 8"},
    {"WeightsOfAnExpert", "tiny-moe",
     SetMany({{"num_experts", 1},
              {"top_k_experts", 1},
              {"moe_intermediate_size", (1 << 20) - 8},
              {"hidden_size", 1024}}),
     SetMany({{"num_experts", 1},
              {"top_k_experts", 1},
              {"moe_intermediate_size", 1 << 20},
              {"hidden_size", 1024}}),
     "experts of width 1048576 at a hidden size of 1024 are larger than 2^31 weights"},
    {"RowsOfExperts", "tiny-moe",
     SetMany({{"moe_intermediate_size", 65528}, {"top_k_experts", 16}}),
     SetMany({{"moe_intermediate_size", 65536}, {"top_k_experts", 16}}),
     "16 experts of width 65536 for each of 2048 rows (--max-num-batched-tokens)"},
};

class CheckSupportedTest : public testing::TestWithParam<Case> {};

TEST_P(CheckSupportedTest, IsTakenUpToTheLimitAndRefusedBeyond) {
  const Case& test = GetParam();
  Json taken = PresetConfig(test.preset).value();
  if (test.limit != nullptr) test.limit(taken);
  const Status at_limit = CheckSupported(PlanOf(taken), kRows);
  EXPECT_TRUE(at_limit.ok()) << at_limit.error().message;
  Json refused = PresetConfig(test.preset).value();
  test.refused(refused);
  const Status beyond = CheckSupported(PlanOf(refused), kRows);
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().message,
            std::string(test.sentence) + "; the CUDA kernels cannot run it, use --device cpu");
}

INSTANTIATE_TEST_SUITE_P(All, CheckSupportedTest, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(CheckSupportedModelTest, EveryPresetIsSupported) {
  for (const std::string& name : PresetNames()) {
    const Status status = CheckSupported(PlanOf(PresetConfig(name).value()), kRows);
    EXPECT_TRUE(status.ok()) << name << ": " << status.error().message;
  }
}

TEST(CheckSupportedModelTest, EveryBundledModelIsSupported) {
  for (const char* name : {"pebble-dense", "pebble-e", "pebble-moe"}) {
    std::ifstream file(std::filesystem::path(LAPIDARY_SOURCE_DIR) / "models" / name /
                       "config.json");
    const Status status = CheckSupported(PlanOf(Json::parse(file)), kRows);
    EXPECT_TRUE(status.ok()) << name << ": " << status.error().message;
  }
}

}  // namespace
}  // namespace lapidary::cuda
