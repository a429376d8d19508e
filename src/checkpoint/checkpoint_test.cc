#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/json_fields.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::path(testing::TempDir()) /
                 fmt::format("checkpoint_{}_{}", info->name(), getpid());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& name, std::string_view bytes) {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
  }

  // A shard of U8 tensors of three bytes each: 'a', 'b', 'c' for the first, and so on.
  void WriteShard(const std::string& file, const std::vector<std::string>& tensors) {
    std::vector<SafetensorsEntry> entries;
    std::string data;
    for (const std::string& tensor : tensors) {
      entries.push_back({.name = tensor, .dtype = DType::kU8, .shape = {3}});
      for (int idx = 0; idx < 3; ++idx) data += static_cast<char>('a' + data.size());
    }
    Write(file, MakeSafetensorsHeader(entries, {}) + data);
  }

  void WriteIndex(const std::map<std::string, std::string>& weight_map) {
    Write("model.safetensors.index.json", Json({{"weight_map", weight_map}}).dump());
  }

  std::string Problem() const {
    const auto checkpoint = Checkpoint::Open(directory_);
    return checkpoint.ok() ? "none" : checkpoint.error().message;
  }

  std::filesystem::path directory_;
};

std::string_view BytesOf(const TensorView& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.num_bytes())};
}

TEST_F(CheckpointTest, FindsTensorsOfOneFileByStrippedName) {
  WriteShard("model.safetensors",
             {"model.language_model.norm.weight", "language_model.model.layers.0.x",
              "model.layers.1.x", "lm_head.weight", "model.vision_tower.y"});
  const auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(BytesOf(*checkpoint->Find("norm.weight")), "abc");
  EXPECT_EQ(BytesOf(*checkpoint->Find("layers.0.x")), "def");
  EXPECT_EQ(BytesOf(*checkpoint->Find("layers.1.x")), "ghi");
  EXPECT_EQ(BytesOf(*checkpoint->Find("lm_head.weight")), "jkl");
  EXPECT_EQ(checkpoint->Find("model.layers.1.x"), nullptr);
  EXPECT_EQ(checkpoint->Find("absent"), nullptr);
  EXPECT_EQ(checkpoint->tensors().size(), 5u);
}

TEST_F(CheckpointTest, ReadsShardsThroughTheIndex) {
  WriteShard("a.safetensors", {"model.x"});
  WriteShard("b.safetensors", {"model.y", "model.z"});
  WriteIndex(
      {{"model.x", "a.safetensors"}, {"model.y", "b.safetensors"}, {"model.z", "b.safetensors"}});
  const auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(BytesOf(*checkpoint->Find("x")), "abc");
  EXPECT_EQ(BytesOf(*checkpoint->Find("z")), "def");
}

TEST_F(CheckpointTest, NamesAMissingShard) {
  WriteIndex({{"model.x", "gone.safetensors"}});
  EXPECT_THAT(Problem(), HasSubstr("gone.safetensors: No such file"));
}

TEST_F(CheckpointTest, RefusesATensorInTheWrongShardOrInNone) {
  WriteShard("a.safetensors", {"model.x", "model.y"});
  WriteShard("b.safetensors", {"model.z"});
  WriteIndex(
      {{"model.x", "a.safetensors"}, {"model.y", "b.safetensors"}, {"model.z", "b.safetensors"}});
  EXPECT_THAT(Problem(), HasSubstr("tensor 'model.y' is not listed for this shard"));
  WriteIndex({{"model.x", "a.safetensors"}, {"model.z", "b.safetensors"}});
  EXPECT_THAT(Problem(), HasSubstr("tensor 'model.y' is not listed for this shard"));
}

TEST_F(CheckpointTest, RefusesAnIndexThatNamesTensorsThatDoNotExist) {
  WriteShard("a.safetensors", {"model.x"});
  WriteIndex({{"model.x", "a.safetensors"}, {"model.ghost", "a.safetensors"}});
  EXPECT_THAT(Problem(), HasSubstr("tensor 'model.ghost' is not in its shard a.safetensors"));
}

TEST_F(CheckpointTest, RefusesShardNamesThatLeadOutOfTheDirectory) {
  WriteShard("a.safetensors", {"model.x"});
  std::filesystem::create_directories(directory_ / "sub");
  WriteShard("sub/a.safetensors", {"model.x"});
  for (const std::string shard :
       {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "./a.safetensors", "", "a\\/b"}) {
    WriteIndex({{"model.x", shard}});
    EXPECT_THAT(Problem(), HasSubstr("tensor 'model.x' names no plain file")) << shard;
  }
  for (const std::string shard : {"..", ".", "sub"}) {
    WriteIndex({{"model.x", shard}});
    EXPECT_THAT(Problem(), HasSubstr("not a regular file")) << shard;
  }
  Write("model.safetensors.index.json", R"({"weight_map":{"model.x":"a.safetensors\u0000"}})");
  EXPECT_THAT(Problem(), HasSubstr("names no plain file"));
  Write("model.safetensors.index.json", R"({"weight_map":{"model.x":7}})");
  EXPECT_THAT(Problem(), HasSubstr("names no plain file"));
}

TEST_F(CheckpointTest, RefusesADamagedIndex) {
  for (const char* index : {"{}", R"({"weight_map":{}})", R"({"weight_map":null})"}) {
    Write("model.safetensors.index.json", index);
    EXPECT_THAT(Problem(), HasSubstr("weight_map is missing or empty"));
  }
  Write("model.safetensors.index.json", R"({"weight_map":[]})");
  EXPECT_THAT(Problem(), HasSubstr("weight_map must be an object"));
  Write("model.safetensors.index.json", "[]");
  EXPECT_THAT(Problem(), HasSubstr("expected a JSON object"));
  Write("model.safetensors.index.json", "{");
  EXPECT_THAT(Problem(), HasSubstr("not valid JSON"));
}

TEST_F(CheckpointTest, RefusesTwoNamesThatMeanTheSameTensor) {
  WriteShard("model.safetensors", {"model.x", "model.language_model.x"});
  EXPECT_THAT(Problem(), HasSubstr("tensor 'x' is there more than once"));
}

TEST_F(CheckpointTest, NamesWhatIsMissingOrDamaged) {
  EXPECT_THAT(Problem(), HasSubstr("holds no model.safetensors and no model.safetensors.index"));
  Write("model.safetensors", "");
  EXPECT_THAT(Problem(), HasSubstr("model.safetensors: 0 bytes are too few"));
  std::filesystem::remove(directory_ / "model.safetensors");
  std::filesystem::create_directories(directory_ / "model.safetensors");
  EXPECT_THAT(Problem(), HasSubstr("not a regular file"));
  EXPECT_THAT(Checkpoint::Open(directory_ / "absent").error().message,
              HasSubstr("is not a directory"));
}

TEST_F(CheckpointTest, HandsOutAlignedTensorsWhereTheFileIsNot) {
  // One byte of header too many and a tensor of one byte in front: nothing is aligned.
  const std::string header = R"({"o":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
                             R"("e":{"dtype":"F32","shape":[0],"data_offsets":[9,9]},)"
                             R"("h":{"dtype":"BF16","shape":[2],"data_offsets":[9,13]}})";
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  file += header;
  const float floats[] = {1.5f, -2.0f};
  const uint16_t halves[] = {FloatToBf16(3.0f), FloatToBf16(-4.0f)};
  file += 'o';
  file.append(reinterpret_cast<const char*>(floats), 8);
  file.append(reinterpret_cast<const char*>(halves), 4);
  Write("model.safetensors", file);
  const auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  for (const auto& [name, tensor] : checkpoint->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % DTypeSize(tensor.dtype), 0u) << name;
  }
  EXPECT_THAT(ToFloats(*checkpoint->Find("f")), testing::ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(ToFloats(*checkpoint->Find("h")), testing::ElementsAre(3.0f, -4.0f));
}

TEST(TensorNames, StripsEachPrefixOnce) {
  EXPECT_EQ(StripTensorPrefix("model.language_model.layers.0.x"), "layers.0.x");
  EXPECT_EQ(StripTensorPrefix("language_model.model.layers.0.x"), "layers.0.x");
  EXPECT_EQ(StripTensorPrefix("model.layers.0.x"), "layers.0.x");
  EXPECT_EQ(StripTensorPrefix("layers.0.x"), "layers.0.x");
  EXPECT_EQ(StripTensorPrefix("model.model.x"), "model.x");
  EXPECT_EQ(StripTensorPrefix("model."), "");
}

TEST(TensorNames, KnowsTheTowers) {
  for (const char* name : {"vision_tower.x", "audio_tower.x", "embed_vision.x", "embed_audio.x",
                           "vision_embedder.x", "multi_modal_projector.x"}) {
    EXPECT_TRUE(IsTowerTensor(name)) << name;
  }
  for (const char* name : {"embed_tokens.weight", "layers.0.vision_tower.x", "norm.weight"}) {
    EXPECT_FALSE(IsTowerTensor(name)) << name;
  }
}

TEST_F(CheckpointTest, PrefaultTouchesAnyRangeOfAMapping) {
  Write("file", std::string(100000, 'x'));
  const auto file = MappedFile::Open(directory_ / "file");
  ASSERT_TRUE(file.ok());
  for (const auto& [begin, size] : {std::pair<size_t, size_t>{0, 100000},
                                    {1, 1},
                                    {4095, 2},
                                    {99999, 1},
                                    {5, 0},
                                    {8192, 4096}}) {
    PrefaultMapped(file->bytes().subspan(begin, size));
  }
}

}  // namespace
}  // namespace lapidary
