// Files on disk: split ones, and a model's config and tensors.
#include "gguf/gguf_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "gguf/gguf_config.h"
#include "gguf/gguf_metadata.h"
#include "gguf/gguf_names.h"
#include "gguf/gguf_source.h"
#include "gguf/gguf_writer.h"
#include "model/assistant_preset.h"
#include "model/presets.h"
#include "model/weights.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

class GgufCheckpointTest : public testing::Test {
 protected:
  GgufCheckpointTest()
      : directory_(std::filesystem::path(testing::TempDir()) /
                   testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(directory_);
  }
  ~GgufCheckpointTest() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path Write(const std::string& name, const GgufWriter& writer) const {
    std::string file = writer.Header();
    file.resize(file.size() + writer.data_bytes());
    std::ofstream(directory_ / name, std::ios::binary) << file;
    return directory_ / name;
  }
  // With real values where the config depends on them.
  std::filesystem::path WriteModel(const GgufWriter& writer, uint64_t rope_offset, int num_turning,
                                   int num_pairs) const {
    const std::filesystem::path path = Write("model.gguf", writer);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<int64_t>(writer.Header().size() + rope_offset));
    for (int pair = 0; pair < num_pairs; ++pair) {
      const float value = pair < num_turning ? 1.0f : 1e30f;
      file.write(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return path;
  }

  const std::filesystem::path directory_;
};

GgufWriter Part(int part, int count, const char* tensor) {
  GgufWriter writer;
  writer.AddU32("split.no", static_cast<uint32_t>(part));
  writer.AddU32("split.count", static_cast<uint32_t>(count));
  writer.AddU32("split.tensors.count", 2);
  writer.AddTensor(tensor, DType::kF32, std::vector<int64_t>{4});
  return writer;
}

TEST_F(GgufCheckpointTest, AnyPartOfASplitFileNamesTheWhole) {
  const auto first = Write("m-00001-of-00002.gguf", Part(0, 2, "a"));
  EXPECT_THAT(GgufCheckpoint::Open(first).error().message,
              HasSubstr("m-00002-of-00002.gguf is missing"));
  const auto second = Write("m-00002-of-00002.gguf", Part(1, 2, "b"));
  for (const auto& path : {first, second}) {
    const auto checkpoint = GgufCheckpoint::Open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_NE(checkpoint->Find("a"), nullptr);
    EXPECT_NE(checkpoint->Find("b"), nullptr);
    EXPECT_EQ(checkpoint->Int("split.no"), 0);
  }
  Write("m-00002-of-00002.gguf", Part(0, 2, "b"));
  EXPECT_THAT(GgufCheckpoint::Open(first).error().message, HasSubstr("part 2 of 2"));
  Write("m-00002-of-00002.gguf", Part(1, 2, "a"));
  EXPECT_THAT(GgufCheckpoint::Open(first).error().message, HasSubstr("more than once"));
  const auto renamed = Write("other.gguf", Part(0, 2, "a"));
  EXPECT_THAT(GgufCheckpoint::Open(renamed).error().message, HasSubstr("00001-of-00002"));
}

TEST_F(GgufCheckpointTest, AFileIsKnownByItsEndingOrItsMagic) {
  EXPECT_TRUE(IsGgufFile(Write("a.gguf", Part(0, 1, "a"))));
  EXPECT_TRUE(IsGgufFile(Write("plain", Part(0, 1, "a"))));
  EXPECT_FALSE(IsGgufFile(directory_));
  EXPECT_FALSE(IsGgufFile(directory_ / "none.gguf"));
  std::ofstream(directory_ / "text") << "GG";
  EXPECT_FALSE(IsGgufFile(directory_ / "text"));
}

// Metadata and tensors of a plan, as a converter writes them.
struct ModelFile {
  GgufWriter writer;
  uint64_t rope_offset = 0;
};

ModelFile FileOfPlan(const ModelPlan& plan, const std::string& without = "",
                     const std::string& extra = "") {
  ModelFile file;
  GgufWriter& writer = file.writer;
  AddPlanMetadata(plan, writer);
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    const std::string name = GgufTensorName(spec.name);
    if (name == without) continue;
    writer.AddTensor(name, spec.shape.size() > 1 ? DType::kBF16 : DType::kF32, spec.shape);
  }
  if (!extra.empty()) writer.AddTensor(extra, DType::kF32, std::vector<int64_t>{4});
  file.rope_offset = writer.AddTensor("rope_freqs.weight", DType::kF32,
                                      std::vector<int64_t>{plan.layers.back().head_dim / 2});
  return file;
}

ModelPlan PlanOf(const char* preset) {
  return MakeModelPlan(ParseModelConfig(PresetConfig(preset).value(), preset).value()).value();
}

TEST_F(GgufCheckpointTest, MetadataGivesThePlanOfEveryKindOfModel) {
  for (const char* preset : {"tiny-e", "tiny-moe", "tiny-dense"}) {
    const ModelPlan plan = PlanOf(preset);
    const ModelFile file = FileOfPlan(plan);
    const auto path =
        WriteModel(file.writer, file.rope_offset, plan.layers.back().rope.num_rotary_pairs,
                   plan.layers.back().head_dim / 2);
    GgufCheckpoint checkpoint = GgufCheckpoint::Open(path).value();
    const auto config = ConfigFromGguf(checkpoint);
    ASSERT_TRUE(config.ok()) << config.error().message;
    const auto read = MakeModelPlan(ParseModelConfig(*config, "test").value());
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_EQ(read->num_layers, plan.num_layers);
    EXPECT_EQ(read->vocab_size, plan.vocab_size);
    EXPECT_EQ(read->max_context, plan.max_context);
    EXPECT_EQ(read->rms_norm_eps, plan.rms_norm_eps);
    EXPECT_EQ(read->logit_softcap, plan.logit_softcap);
    for (int idx = 0; idx < plan.num_layers; ++idx) {
      const LayerPlan& got = read->layers[idx];
      const LayerPlan& want = plan.layers[idx];
      EXPECT_EQ(got.kind, want.kind) << preset << " " << idx;
      EXPECT_EQ(got.head_dim, want.head_dim) << preset << " " << idx;
      EXPECT_EQ(got.num_kv_heads, want.num_kv_heads) << preset << " " << idx;
      EXPECT_TRUE(got.rope == want.rope) << preset << " " << idx;
      EXPECT_EQ(got.window, want.window) << preset << " " << idx;
      EXPECT_EQ(got.kv_layer, want.kv_layer) << preset << " " << idx;
      EXPECT_EQ(got.k_is_v, want.k_is_v) << preset << " " << idx;
      EXPECT_EQ(got.mlp_width, want.mlp_width) << preset << " " << idx;
      EXPECT_EQ(got.has_moe, want.has_moe) << preset << " " << idx;
    }
    const auto source = GgufSource::Open(std::move(checkpoint), *read);
    EXPECT_TRUE(source.ok()) << source.error().message;
  }
}

TEST_F(GgufCheckpointTest, AHeadOfItsOwnIsPartOfThePlan) {
  ModelPlan plan = PlanOf("tiny-dense");
  plan.has_own_head = true;
  const ModelFile file = FileOfPlan(plan);
  const auto path =
      WriteModel(file.writer, file.rope_offset, plan.layers.back().rope.num_rotary_pairs,
                 plan.layers.back().head_dim / 2);
  GgufCheckpoint checkpoint = GgufCheckpoint::Open(path).value();
  const Json config = ConfigFromGguf(checkpoint).value();
  const ModelPlan read = MakeModelPlan(ParseModelConfig(config, "test").value()).value();
  EXPECT_TRUE(read.has_own_head);
  const std::byte* head = checkpoint.Find("output.weight")->data;
  const auto source = GgufSource::Open(std::move(checkpoint), read);
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ(BindWeights(read, **source)->head.data, head);
}

TEST_F(GgufCheckpointTest, AssistantsHaveAnArchitectureOfTheirOwn) {
  Json config = AssistantPresetConfig("tiny-moe").value();
  const AssistantPlan plan = MakeAssistantPlan(ParseAssistantConfig(config, "assistant").value());
  GgufWriter writer;
  AddPlanMetadata(plan, writer);
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    writer.AddTensor(GgufTensorName(spec.name), spec.shape.size() > 1 ? DType::kBF16 : DType::kF32,
                     spec.shape);
  }
  // Of an ordered head, which nobody reads.
  writer.AddTensor("masked_embd_ordering", DType::kI32, std::vector<int64_t>{512});
  const LayerPlan& full = plan.decoder.layers.back();
  const uint64_t rope_offset =
      writer.AddTensor("rope_freqs.weight", DType::kF32, std::vector<int64_t>{full.head_dim / 2});
  const auto path = WriteModel(writer, rope_offset, full.rope.num_rotary_pairs, full.head_dim / 2);
  GgufCheckpoint checkpoint = GgufCheckpoint::Open(path).value();
  EXPECT_THAT(ConfigFromGguf(checkpoint).error().message, HasSubstr("target model"));
  const auto read_config = AssistantConfigFromGguf(checkpoint);
  ASSERT_TRUE(read_config.ok()) << read_config.error().message;
  const auto read = PairAssistant(
      MakeAssistantPlan(ParseAssistantConfig(*read_config, "test").value()), PlanOf("tiny-moe"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->backbone_hidden_size, plan.backbone_hidden_size);
  EXPECT_FALSE(read->ordered_head);
  EXPECT_EQ(read->decoder.layers.size(), plan.decoder.layers.size());
  const auto source = GgufSource::Open(std::move(checkpoint), *read);
  ASSERT_TRUE(source.ok()) << source.error().message;

  const ModelFile model = FileOfPlan(PlanOf("tiny-moe"));
  const auto target = GgufCheckpoint::Open(Write("target.gguf", model.writer)).value();
  EXPECT_THAT(AssistantConfigFromGguf(target).error().message,
              HasSubstr("not a Gemma 4 drafting assistant"));
}

TEST_F(GgufCheckpointTest, MissingAndUnexplainedTensorsAreNamed) {
  const ModelPlan plan = PlanOf("tiny-moe");
  const auto error_of = [&](const ModelFile& file) {
    const auto path =
        WriteModel(file.writer, file.rope_offset, plan.layers.back().rope.num_rotary_pairs,
                   plan.layers.back().head_dim / 2);
    const auto source = GgufSource::Open(GgufCheckpoint::Open(path).value(), plan);
    return source.ok() ? "" : source.error().message;
  };
  EXPECT_EQ(error_of(FileOfPlan(plan)), "");
  EXPECT_THAT(error_of(FileOfPlan(plan, "blk.0.ffn_up.weight")),
              HasSubstr("blk.0.ffn_up.weight is missing"));
  EXPECT_THAT(error_of(FileOfPlan(plan, "blk.0.ffn_gate_up_exps.weight")),
              HasSubstr("ffn_gate_up_exps.weight is missing"));
  EXPECT_THAT(error_of(FileOfPlan(plan, "", "blk.0.ssm_a")), HasSubstr("'blk.0.ssm_a' does not"));
  EXPECT_THAT(error_of(FileOfPlan(plan, "", "output.weight")), HasSubstr("does not belong"));
  EXPECT_THAT(error_of(FileOfPlan(PlanOf("tiny-dense"))), testing::Not(testing::IsEmpty()));
}

TEST_F(GgufCheckpointTest, OtherArchitecturesAndBadRopeAreRefused) {
  for (const auto& [architecture, message] : std::map<std::string, std::string>{
           {"clip", "towers"}, {"gemma4-assistant", "target model"}, {"llama", "not Gemma 4"}}) {
    GgufWriter writer;
    writer.AddString("general.architecture", architecture);
    const auto checkpoint = GgufCheckpoint::Open(Write("a.gguf", writer)).value();
    EXPECT_THAT(ConfigFromGguf(checkpoint).error().message, HasSubstr(message));
  }
  const ModelPlan plan = PlanOf("tiny-e");
  const ModelFile file = FileOfPlan(plan);
  const auto path = WriteModel(file.writer, file.rope_offset, 0, 1);  // 1e30, then zeros
  EXPECT_THAT(ConfigFromGguf(GgufCheckpoint::Open(path).value()).error().message,
              HasSubstr("rope_freqs.weight"));
}

TEST_F(GgufCheckpointTest, AVocabularyMustFitItsTable) {
  const ModelPlan plan = PlanOf("tiny-e");
  ModelFile file = FileOfPlan(plan);
  const std::vector<std::string_view> tokens(plan.vocab_size + 1, "a");
  file.writer.AddStrings("tokenizer.ggml.tokens", tokens);
  const auto path = Write("a.gguf", file.writer);
  EXPECT_THAT(ConfigFromGguf(GgufCheckpoint::Open(path).value()).error().message,
              HasSubstr("vocabulary has"));
}

}  // namespace
}  // namespace lapidary
