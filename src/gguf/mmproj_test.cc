// Files of towers: what of them is taken, and what is refused.
#include "gguf/mmproj.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "gguf/gguf_writer.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

class MmprojTest : public testing::Test {
 protected:
  MmprojTest()
      : directory_(std::filesystem::path(testing::TempDir()) /
                   testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(directory_);
    const std::vector<std::string_view> tokens = {"<pad>", "<|image|>", "x", "<|audio|>"};
    model_.AddStrings("tokenizer.ggml.tokens", tokens);
  }
  ~MmprojTest() override { std::filesystem::remove_all(directory_); }

  // Data counts up from 0.
  std::filesystem::path Write(const std::string& name, const GgufWriter& writer) const {
    std::ofstream file(directory_ / name, std::ios::binary);
    file << writer.Header();
    for (uint64_t idx = 0; idx < writer.data_bytes() / sizeof(float); ++idx) {
      const float value = static_cast<float>(idx);
      file.write(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return directory_ / name;
  }
  Result<Json> Config(const GgufWriter& towers, int ple_width = 16) const {
    const Json decoder = {{"hidden_size", 8}, {"hidden_size_per_layer_input", ple_width}};
    const auto model = GgufCheckpoint::Open(Write("model.gguf", model_)).value();
    return ConfigWithTowers(model, decoder,
                            GgufCheckpoint::Open(Write("mmproj.gguf", towers)).value());
  }
  std::string ErrorOf(const GgufWriter& towers) const {
    const auto config = Config(towers);
    return config.ok() ? "" : config.error().message;
  }

  const std::filesystem::path directory_;
  GgufWriter model_;
};

GgufWriter Vision(const std::string& projector, int64_t text_hidden) {
  GgufWriter writer;
  writer.AddString("general.architecture", "clip");
  writer.AddString("clip.vision.projector_type", projector);
  writer.AddU32("clip.vision.patch_size", 2);
  writer.AddU32("clip.vision.embedding_length", 4);
  writer.AddU32("clip.vision.feed_forward_length", 6);
  writer.AddU32("clip.vision.block_count", 1);
  writer.AddU32("clip.vision.attention.head_count", 2);
  writer.AddTensor("mm.input_projection.weight", DType::kF32, std::vector<int64_t>{text_hidden, 4});
  writer.AddTensor("v.position_embd.weight", DType::kF32, std::vector<int64_t>{2, 5, 4});
  writer.AddTensor("v.blk.0.attn_q.weight", DType::kF32, std::vector<int64_t>{8, 4});
  return writer;
}

TEST_F(MmprojTest, ShapesAndPlaceholdersAreTaken) {
  const auto config = Config(Vision("gemma4v", 8));
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->at("vision_config").at("head_dim"), 4);
  EXPECT_EQ(config->at("vision_config").at("position_embedding_size"), 5);
  EXPECT_EQ(config->at("vision_config").at("use_clipped_linears"), false);
  EXPECT_EQ(config->at("image_token_id"), 1);
  EXPECT_EQ(config->at("audio_token_id"), 3);
  EXPECT_FALSE(config->contains("audio_config"));
  EXPECT_FALSE(config->at("text_config").contains("use_bidirectional_attention"));
  EXPECT_EQ(Config(Vision("gemma4v", 8), /*ple_width=*/0)
                ->at("text_config")
                .at("use_bidirectional_attention"),
            "vision");
}

TEST_F(MmprojTest, OtherTowersAreRefused) {
  EXPECT_THAT(ErrorOf(GgufWriter()), HasSubstr("not Gemma 4's"));
  EXPECT_THAT(ErrorOf(Vision("gemma3", 8)), HasSubstr("'gemma3'"));
  EXPECT_THAT(ErrorOf(Vision("gemma4a", 8)), HasSubstr("not Gemma 4's"));
  EXPECT_THAT(ErrorOf(Vision("gemma4v", 16)), HasSubstr("rows of 16, the model has rows of 8"));
  GgufWriter no_keys;
  no_keys.AddString("clip.vision.projector_type", "gemma4v");
  EXPECT_THAT(ErrorOf(no_keys), HasSubstr("clip.vision.patch_size must be an integer"));
  GgufWriter scaled = Vision("gemma4v", 8);
  scaled.AddTensor("v.blk.0.out_scale.weight", DType::kF32, std::vector<int64_t>{1});
  EXPECT_THAT(ErrorOf(scaled), HasSubstr("scaled layers"));
}

TEST_F(MmprojTest, PatchesHaveTheirChannelsLast) {
  GgufWriter writer = Vision("gemma4v", 8);
  const uint64_t at =
      writer.AddTensor("v.patch_embd.weight", DType::kF32, std::vector<int64_t>{4, 3, 2, 2}) /
      sizeof(float);
  const auto tensors = MmprojTensors::Open(Write("mmproj.gguf", writer)).value();
  const TensorView* patches = tensors.Find("vision_tower.patch_embedder.input_proj.weight");
  ASSERT_NE(patches, nullptr);
  EXPECT_EQ(patches->shape, (std::vector<int64_t>{4, 12}));
  // The first pixel's red, green and blue are the first of each channel.
  const float first = static_cast<float>(at);
  EXPECT_THAT(std::vector<float>(patches->As<float>(), patches->As<float>() + 4),
              testing::ElementsAre(first, first + 4, first + 8, first + 1));
}

TEST_F(MmprojTest, WhatIsNoFloatIsNotRead) {
  GgufWriter writer = Vision("gemma4v", 8);
  writer.AddTensor("v.patch_embd.weight", DType::kI32, std::vector<int64_t>{4, 3, 2, 2});
  writer.AddTensor("a.blk.0.attn_q.weight", DType::kF32, std::vector<int64_t>{4, 4});
  writer.AddTensor("a.blk.0.per_dim_scale.weight", DType::kI8, std::vector<int64_t>{4});
  const auto tensors = MmprojTensors::Open(Write("mmproj.gguf", writer)).value();
  EXPECT_EQ(tensors.Find("vision_tower.patch_embedder.input_proj.weight"), nullptr);
  EXPECT_EQ(tensors.Find("audio_tower.layers.0.self_attn.per_dim_scale"), nullptr);
}

TEST_F(MmprojTest, BoundsOfOneValueAreScalars) {
  GgufWriter writer = Vision("gemma4v", 8);
  writer.AddTensor("v.blk.0.attn_q.input_min", DType::kF32, std::vector<int64_t>{1});
  writer.AddTensor("v.blk.0.attn_q.input_max", DType::kF32, std::vector<int64_t>{2});
  const auto tensors = MmprojTensors::Open(Write("mmproj.gguf", writer)).value();
  const std::string name = "vision_tower.encoder.layers.0.self_attn.q_proj.input_";
  EXPECT_TRUE(tensors.Find(name + "min")->shape.empty());
  EXPECT_EQ(tensors.Find(name + "max")->shape, (std::vector<int64_t>{2})) << "to be refused";
}

TEST_F(MmprojTest, FilesBesideAModelAreFoundByName) {
  for (const char* name : {"mmproj-b.gguf", "a-mmproj.gguf", "mmproj.txt", "other.gguf"}) {
    std::ofstream(directory_ / name) << "x";
  }
  const auto files = MmprojFilesBeside(directory_ / "model.gguf");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].filename(), "a-mmproj.gguf");
  EXPECT_TRUE(MmprojFilesBeside("/nonexistent/model.gguf").empty());
}

}  // namespace
}  // namespace lapidary
