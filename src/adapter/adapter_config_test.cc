#include "adapter/adapter_config.h"

#include <gtest/gtest.h>

#include "adapter/module_patterns.h"

namespace lapidary {
namespace {

constexpr const char* kQuery = "model.language_model.layers.3.self_attn.q_proj";
constexpr const char* kDown = "model.language_model.layers.13.mlp.down_proj";

AdapterConfig Parse(const std::string& text) {
  auto config = ParseAdapterConfig(text, "a/adapter_config.json");
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? *config : AdapterConfig{};
}

std::string Refusal(const std::string& text) {
  const auto config = ParseAdapterConfig(text, "a/adapter_config.json");
  EXPECT_FALSE(config.ok()) << text;
  if (config.ok()) return "";
  EXPECT_TRUE(config.error().message.starts_with("a/adapter_config.json: "));
  return config.error().message;
}

TEST(AdapterConfig, ReadsWhatPeftWrites) {
  const AdapterConfig config = Parse(R"({
    "peft_type": "LORA", "r": 16, "lora_alpha": 32, "use_rslora": true, "use_dora": false,
    "bias": "none", "lora_bias": false, "modules_to_save": null, "trainable_token_indices": null,
    "target_modules": ["q_proj", "down_proj"], "target_parameters": ["experts.down_proj"],
    "layers_to_transform": [1, 3], "rank_pattern": {"q_proj": 8}, "alpha_pattern": {"q_proj": 0.5},
    "init_lora_weights": true, "loftq_config": {}, "something_new": {"a": [1]}})");
  EXPECT_EQ(config.rank, 16);
  EXPECT_EQ(config.alpha, 32.0);
  EXPECT_TRUE(config.scales_by_root);
  EXPECT_EQ(config.target_modules, (std::vector<std::string>{"q_proj", "down_proj"}));
  EXPECT_EQ(config.target_parameters, (std::vector<std::string>{"experts.down_proj"}));
  EXPECT_EQ(config.layers_to_transform, (std::vector<int>{1, 3}));
  EXPECT_EQ(config.rank_pattern, (std::vector<std::pair<std::string, int>>{{"q_proj", 8}}));
  EXPECT_EQ(config.alpha_pattern, (std::vector<std::pair<std::string, double>>{{"q_proj", 0.5}}));
  EXPECT_EQ(Parse(R"({"layers_to_transform": 2})").layers_to_transform, (std::vector<int>{2}));
  EXPECT_EQ(Parse(R"({"layers_to_transform": []})").layers_to_transform, std::nullopt);
  EXPECT_EQ(Parse(R"({"target_modules": ".*q_proj"})").target_regex, ".*q_proj");
}

TEST(AdapterConfig, WhatIsMoreThanLowRankDeltasIsRefusedByItsField) {
  for (const std::string field :
       {R"("use_dora": true)", R"("lora_bias": true)", R"("modules_to_save": ["lm_head"])",
        R"("trainable_token_indices": [1])", R"("layer_replication": [[0, 2]])", R"("bias": "all")",
        R"("alora_invocation_tokens": [5])", R"("use_qalora": true)",
        R"("init_lora_weights": "pissa_niter_4")", R"("peft_type": "LOHA")"}) {
    const std::string name = field.substr(1, field.find('"', 1) - 1);
    EXPECT_NE(Refusal("{" + field + "}").find(name), std::string::npos) << field;
  }
}

TEST(AdapterConfig, RangesAndTypesAreChecked) {
  for (const std::string text :
       {R"([])", R"({"r": 0})", R"({"r": 257})", R"({"r": "16"})", R"({"lora_alpha": -1})",
        R"({"lora_alpha": 1e300})", R"({"rank_pattern": {"q_proj": 2.5}})",
        R"({"rank_pattern": {"q_proj": 1000}})", R"({"rank_pattern": []})",
        R"({"alpha_pattern": {"q_proj": null}})", R"({"target_modules": [1]})",
        R"({"target_modules": 3})", R"({"target_parameters": "experts.down_proj"})",
        R"({"layers_to_transform": [-1]})", R"({"layers_to_transform": "1"})", R"({)"}) {
    EXPECT_FALSE(Refusal(text).empty()) << text;
  }
}

ModulePatterns PatternsOf(const AdapterConfig& config) {
  auto patterns = ModulePatterns::Make(config, "config");
  EXPECT_TRUE(patterns.ok()) << patterns.error().message;
  return std::move(patterns).value();
}

TEST(ModulePatterns, EntriesMatchTheEndOfANameAsInPeft) {
  const AdapterConfig config = Parse(R"({"r": 4, "lora_alpha": 1, "rank_pattern": {
    "q_proj": 2, "layers\\.\\d+\\.mlp\\.(up|down)_proj": 7, "_proj": 99, "3.self_attn": 98},
    "alpha_pattern": {"^model.language_model.layers.3.self_attn.q_proj": 5, "model.layers.3": 6}})");
  ModulePatterns patterns = PatternsOf(config);
  EXPECT_EQ(*patterns.RankOf(kQuery), 2);
  EXPECT_EQ(*patterns.RankOf(kDown), 7);
  EXPECT_EQ(*patterns.RankOf("model.layers.1.self_attn.k_proj"), 4);
  EXPECT_EQ(*patterns.RankOf("model.layers.1.self_attn.my_q_proj"), 4);
  EXPECT_EQ(*patterns.AlphaOf(kQuery), 5.0);
  EXPECT_EQ(*patterns.AlphaOf(kDown), 1.0);
}

TEST(ModulePatterns, EntriesThatDisagreeAreRefused) {
  const AdapterConfig config =
      Parse(R"({"rank_pattern": {"q_proj": 2, "self_attn.q_proj": 2, "3.self_attn.q_proj": 3}})");
  ModulePatterns patterns = PatternsOf(config);
  EXPECT_NE(patterns.RankOf(kQuery).error().message.find("3.self_attn.q_proj"), std::string::npos);
  EXPECT_EQ(*patterns.RankOf("layers.4.self_attn.q_proj"), 2);
}

TEST(ModulePatterns, ExpressionsThatCannotBeReadAreRefusedForRanksAndPassedOverForTargets) {
  const AdapterConfig rank = Parse(R"({"rank_pattern": {"\\bq_proj": 2}})");
  EXPECT_NE(ModulePatterns::Make(rank, "config").error().message.find("\\bq_proj"),
            std::string::npos);
  const AdapterConfig target = Parse(R"({"target_modules": "\\bq_proj"})");
  EXPECT_TRUE(PatternsOf(target).IsTarget(kQuery, 3));
}

TEST(ModulePatterns, TargetsAreEndsOfNamesOrOneExpression) {
  const AdapterConfig list = Parse(R"({"target_modules": ["q_proj"], "layers_to_transform": 3})");
  EXPECT_TRUE(PatternsOf(list).IsTarget(kQuery, 3));
  EXPECT_FALSE(PatternsOf(list).IsTarget(kQuery, 4));
  EXPECT_FALSE(PatternsOf(list).IsTarget(kDown, 3));
  const AdapterConfig regex =
      Parse(R"x({"target_modules": ".*language_model\\..*\\.(q_proj|v_proj)"})x");
  EXPECT_TRUE(PatternsOf(regex).IsTarget(kQuery, 3));
  EXPECT_FALSE(PatternsOf(regex).IsTarget(kDown, 13));
  const AdapterConfig linear = Parse(R"({"target_modules": "all-linear"})");
  EXPECT_TRUE(PatternsOf(linear).IsTarget(kDown, 13));
}

}  // namespace
}  // namespace lapidary
