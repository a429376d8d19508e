#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model/assistant_preset.h"
#include "model/assistant_source.h"
#include "model/presets.h"

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelPlan TargetPlan(const std::string& preset) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(preset), preset).value()).value();
}

Result<AssistantPlan> Pair(const Json& config, const std::string& target) {
  ASSIGN_OR_RETURN(const AssistantConfig parsed, ParseAssistantConfig(config, "assistant"));
  return PairAssistant(MakeAssistantPlan(parsed), TargetPlan(target));
}

std::string PairError(const Json& config, const std::string& target) {
  const auto plan = Pair(config, target);
  return plan.ok() ? "" : plan.error().message;
}

TEST(AssistantPlan, ReadsTheLastOwnerOfItsKindInEveryPublishedPair) {
  const std::vector<std::tuple<std::string, int, int>> donors = {
      {"e2b", 13, 14}, {"e4b", 22, 23}, {"12b", 46, 47}, {"26b-a4b", 28, 29}, {"31b", 58, 59}};
  for (const auto& [preset, sliding, full] : donors) {
    const auto plan = Pair(*AssistantPresetConfig(preset), preset);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_THAT(plan->kv_donors, ElementsAre(sliding, sliding, sliding, full)) << preset;
    for (size_t idx = 0; idx < plan->kv_donors.size(); ++idx) {
      const LayerPlan& layer = plan->decoder.layers[idx];
      EXPECT_EQ(layer.kv_entry, TargetPlan(preset).layers[plan->kv_donors[idx]].kv_entry);
      EXPECT_FALSE(layer.owns_kv());
    }
  }
}

TEST(AssistantPlan, HasTheParametersAndTensorsOfThePublishedOnes) {
  const std::vector<std::tuple<std::string, int64_t, size_t>> published = {
      {"e2b", 77'700'000, 49},
      {"e4b", 78'500'000, 49},
      {"12b", 422'900'000, 48},
      {"26b-a4b", 419'700'000, 48},
      {"31b", 469'500'000, 48}};
  for (const auto& [preset, parameters, num_tensors] : published) {
    const AssistantPlan plan = Pair(*AssistantPresetConfig(preset), preset).value();
    int64_t count = 0;
    const std::vector<TensorSpec> specs = RequiredTensors(plan);
    for (const TensorSpec& spec : specs) count += spec.num_elements();
    EXPECT_NEAR(static_cast<double>(count), static_cast<double>(parameters), 5e4) << preset;
    EXPECT_EQ(specs.size(), num_tensors) << preset;  // the token ordering comes on top
  }
}

TEST(AssistantPlan, RefusesAnotherModelsAssistant) {
  EXPECT_THAT(PairError(*AssistantPresetConfig("e4b"), "e2b"),
              HasSubstr("its backbone_hidden_size is 2560, the model's 1536"));
  const auto changed = [](const char* key, const Json& value) {
    Json config = *AssistantPresetConfig("tiny-moe");
    config["text_config"][key] = value;
    return PairError(config, "tiny-moe");
  };
  EXPECT_EQ(changed("vocab_size", 512), "");
  EXPECT_THAT(changed("vocab_size", 1024), HasSubstr("its vocab_size is 1024, the model's 512"));
  EXPECT_THAT(changed("head_dim", 128), HasSubstr("its sliding head_dim is 128, the model's 256"));
  EXPECT_THAT(changed("global_head_dim", 256), HasSubstr("its full head_dim is 256"));
  EXPECT_THAT(changed("num_key_value_heads", 4), HasSubstr("its sliding number of KV heads is 4"));
  EXPECT_THAT(changed("num_global_key_value_heads", 2),
              HasSubstr("its full number of KV heads is 2, the model's 1"));
  EXPECT_THAT(changed("sliding_window", 16), HasSubstr("its sliding_window is 16"));
  EXPECT_THAT(changed("rope_parameters",
                      {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                       {"sliding_attention", {{"rope_theta", 1e4}}}}),
              HasSubstr("rope_parameters of full attention"));
}

TEST(AssistantConfig, RefusesWhatIsNoAssistant) {
  EXPECT_THAT(PairError(*PresetConfig("tiny-e"), "tiny-e"),
              HasSubstr("is not a Gemma 4 drafting assistant"));
  const auto changed = [](const char* key, const Json& value, bool in_text) {
    Json config = *AssistantPresetConfig("tiny-e");
    (in_text ? config["text_config"] : config)[key] = value;
    return PairError(config, "tiny-e");
  };
  EXPECT_EQ(changed("num_kv_shared_layers", 0, true), "");  // All of them, whatever it says.
  EXPECT_THAT(changed("hidden_size_per_layer_input", 32, true), HasSubstr("an assistant has no"));
  EXPECT_THAT(changed("enable_moe_block", true, true), HasSubstr("an assistant has no"));
  EXPECT_THAT(changed("final_logit_softcapping", 30.0, true), HasSubstr("softcapping"));
  EXPECT_THAT(changed("num_centroids", 7, false), HasSubstr("does not divide into 7 centroids"));
  EXPECT_THAT(changed("centroid_intermediate_top_k", 33, false),
              HasSubstr("centroid_intermediate"));
  EXPECT_THAT(changed("backbone_hidden_size", nullptr, false), HasSubstr("backbone_hidden_size"));
  EXPECT_THAT(changed("text_config", nullptr, false), HasSubstr("text_config is missing"));
}

TEST(AssistantSource, PutsTheRowsOfAnOrderedHeadInTheOrderOfTheCentroids) {
  Json dense_config = *AssistantPresetConfig("tiny-e");
  dense_config["use_ordered_embeddings"] = false;
  const AssistantPlan ordered = Pair(*AssistantPresetConfig("tiny-e"), "tiny-e").value();
  const AssistantPlan dense = Pair(dense_config, "tiny-e").value();
  ThreadPool threads(1);
  const auto source = AssistantSource::MakeDummy(ordered, 3, threads).value();
  const auto plain = AssistantSource::MakeDummy(dense, 3, threads).value();
  EXPECT_TRUE(plain->token_ordering().empty());
  const AssistantWeights weights = BindWeights(ordered, *source).value();
  const AssistantWeights unordered = BindWeights(dense, *plain).value();
  EXPECT_EQ(weights.centroids.rows, 32);
  EXPECT_EQ(unordered.centroids.data, nullptr);
  const MatrixRef& head = weights.decoder.embedding;
  std::vector<bool> is_seen(head.rows, false);
  for (int row = 0; row < head.rows; ++row) {
    const int32_t id = source->token_ordering()[row];
    is_seen[id] = true;
    EXPECT_EQ(0, std::memcmp(head.As<std::byte>() + row * head.row_bytes(),
                             unordered.decoder.embedding.As<std::byte>() + id * head.row_bytes(),
                             head.row_bytes()))
        << row;
  }
  EXPECT_EQ(std::count(is_seen.begin(), is_seen.end(), true), head.rows);
}

}  // namespace
}  // namespace lapidary
