#include "towers/tower_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "towers/tower_specs.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

// A wrapper as published ones are: everything left out is as in the reference.
Json Wrapper(const char* architecture) {
  return {{"architectures", {architecture}},
          {"text_config", {{"hidden_size", 1536}}},
          {"vision_config", Json::object()},
          {"audio_config", Json::object()}};
}

constexpr const char* kWithTowers = "Gemma4ForConditionalGeneration";

const TensorSpec& Find(const std::vector<TensorSpec>& specs, const std::string& name) {
  for (const TensorSpec& spec : specs) {
    if (spec.name == name) return spec;
  }
  CHECK(false) << name;
  return specs[0];
}

using Shape = std::vector<int64_t>;

TEST(TowersPlanTest, LeftOutFieldsAreThoseOfE2b) {
  const TowersPlan plan = MakeTowersPlan(Wrapper(kWithTowers), "e2b").value();
  const auto vision = VisionTensors(plan);
  EXPECT_EQ(Find(vision, "vision_tower.patch_embedder.input_proj.weight").shape, (Shape{768, 768}));
  EXPECT_EQ(Find(vision, "vision_tower.encoder.layers.15.mlp.down_proj.linear.weight").shape,
            (Shape{768, 3072}));
  EXPECT_EQ(Find(vision, "embed_vision.embedding_projection.weight").shape, (Shape{1536, 768}));
  const auto audio = AudioTensors(plan);
  EXPECT_EQ(Find(audio, "audio_tower.layers.11.lconv1d.linear_start.linear.weight").shape,
            (Shape{2048, 1024}));
  EXPECT_EQ(Find(audio, "audio_tower.layers.11.lconv1d.linear_start.input_min").shape, Shape{});
  EXPECT_EQ(Find(audio, "audio_tower.subsample_conv_projection.input_proj_linear.weight").shape,
            (Shape{1024, 1024}));
  EXPECT_EQ(plan.audio_tower->num_keys, 12);
}

TEST(TowersPlanTest, TheUnifiedKindHasNoTowers) {
  const TowersPlan plan =
      MakeTowersPlan(Wrapper("Gemma4UnifiedForConditionalGeneration"), "12b").value();
  EXPECT_FALSE(plan.vision_tower || plan.audio_tower);
  EXPECT_EQ(Find(VisionTensors(plan), "vision_embedder.patch_dense.weight").shape,
            (Shape{3840, 6912}));
  EXPECT_EQ(Find(AudioTensors(plan), "embed_audio.embedding_projection.weight").shape,
            (Shape{1536, 640}));
}

TEST(TowersPlanTest, TextAloneHasNone) {
  const TowersPlan plan = MakeTowersPlan({{"hidden_size", 8}}, "text").value();
  EXPECT_FALSE(plan.has_vision() || plan.has_audio());
  EXPECT_TRUE(VisionTensors(plan).empty() && AudioTensors(plan).empty());
}

TEST(TowersPlanTest, RefusesWhatItWouldGetWrong) {
  const auto problem = [](const char* part, const char* key, const Json& value) {
    Json config = Wrapper(kWithTowers);
    config[part][key] = value;
    const auto plan = MakeTowersPlan(config, "x");
    return plan.ok() ? std::string("none") : plan.error().message;
  };
  EXPECT_THAT(problem("vision_config", "hidden_size", -1),
              HasSubstr("x: vision_config: hidden_size"));
  EXPECT_THAT(problem("vision_config", "hidden_size", "wide"), HasSubstr("must be an integer"));
  EXPECT_THAT(problem("vision_config", "head_dim", 18), HasSubstr("two rotary halves"));
  EXPECT_THAT(problem("vision_config", "num_key_value_heads", 4), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(problem("vision_config", "hidden_activation", "relu"),
              HasSubstr("hidden_activation"));
  EXPECT_THAT(problem("audio_config", "attention_chunk_size", 10), HasSubstr("attention"));
  EXPECT_THAT(problem("audio_config", "attention_context_right", 2), HasSubstr("attention"));
  EXPECT_THAT(problem("audio_config", "subsampling_conv_channels", {64, 32}),
              HasSubstr("[128, n]"));
  EXPECT_THAT(problem("audio_config", "num_attention_heads", 7), HasSubstr("7 heads"));
}

TEST(TowersPlanTest, ATowerOfAnotherShapeIsLeftOutAndTheOtherStays) {
  Json config = Wrapper(kWithTowers);
  const UsableTowers both = FindUsableTowers(config, "e2b");
  EXPECT_TRUE(both.plan.has_vision() && both.plan.has_audio());
  EXPECT_EQ(both.problem, "");

  config["audio_config"] = {{"attention_context_right", 4}};
  const UsableTowers deaf = FindUsableTowers(config, "e2b");
  EXPECT_TRUE(deaf.plan.has_vision());
  EXPECT_FALSE(deaf.plan.has_audio());
  EXPECT_THAT(deaf.problem, HasSubstr("the audio tower's attention is not Gemma 4's"));

  config["vision_config"] = {{"hidden_size", -1}};
  const UsableTowers neither = FindUsableTowers(config, "e2b");
  EXPECT_FALSE(neither.plan.has_vision() || neither.plan.has_audio());
}

}  // namespace
}  // namespace lapidary
