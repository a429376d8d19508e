#include "model/tensor_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "model/bind_weights.h"
#include "model/presets.h"
#include "model/synthetic_values.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

ModelPlan TinyPlan(const std::string& preset) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(preset), preset).value()).value();
}

struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kBF16;
};

class CheckpointSourceTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::path(testing::TempDir()) /
                 fmt::format("source_{}_{}", info->name(), getpid());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static std::vector<FileTensor> TensorsOf(const ModelPlan& plan) {
    std::vector<FileTensor> tensors;
    for (const TensorSpec& spec : RequiredTensors(plan)) tensors.push_back({spec.name, spec.shape});
    return tensors;
  }

  // Zeroes in the shape of the tensors, names under `prefix`.
  void Write(const std::vector<FileTensor>& tensors, const std::string& prefix) {
    std::vector<SafetensorsEntry> entries;
    for (const FileTensor& tensor : tensors) {
      entries.push_back(
          {.name = prefix + tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
    }
    const std::string header = MakeSafetensorsHeader(entries, {});
    const auto path = directory_ / "model.safetensors";
    std::ofstream(path, std::ios::binary) << header;
    std::filesystem::resize_file(path, entries.empty() ? header.size() : entries.back().end);
  }

  std::string Problem(const ModelPlan& plan) const {
    const auto source = CheckpointSource::Open(directory_, plan);
    return source.ok() ? "none" : source.error().message;
  }

  std::filesystem::path directory_;
};

TEST_F(CheckpointSourceTest, AcceptsEveryPrefixAndWeightType) {
  const ModelPlan plan = TinyPlan("tiny-e");
  for (const char* prefix : {"model.language_model.", "language_model.model.", "model.", ""}) {
    Write(TensorsOf(plan), prefix);
    EXPECT_EQ(Problem(plan), "none") << prefix;
  }
  auto tensors = TensorsOf(plan);
  for (size_t idx = 0; idx < tensors.size(); ++idx) {
    tensors[idx].dtype = idx % 3 == 0 ? DType::kF32 : idx % 3 == 1 ? DType::kF16 : DType::kBF16;
  }
  Write(tensors, "model.");
  EXPECT_EQ(Problem(plan), "none");
}

TEST_F(CheckpointSourceTest, IgnoresTowersATiedHeadCopyAndUnusedSharedKv) {
  const ModelPlan plan = TinyPlan("tiny-e");
  auto tensors = TensorsOf(plan);
  for (const TensorSpec& spec : UnusedSharedKvTensors(plan)) {
    tensors.push_back({spec.name, spec.shape});
  }
  for (const char* tower : {"vision_tower.a", "audio_tower.b", "embed_vision.c", "embed_audio.d",
                            "vision_embedder.e"}) {
    tensors.push_back({tower, {1}});
  }
  Write(tensors, "model.");
  EXPECT_EQ(Problem(plan), "none");
  auto with_head = TensorsOf(plan);
  with_head.push_back({"lm_head.weight", {512, 96}});
  Write(with_head, "");
  EXPECT_EQ(Problem(plan), "none");
}

TEST_F(CheckpointSourceTest, NamesMissingTensors) {
  const ModelPlan plan = TinyPlan("tiny-moe");
  auto tensors = TensorsOf(plan);
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == "layers.3.router.scale"; });
  Write(tensors, "model.");
  EXPECT_THAT(Problem(plan), HasSubstr("1 tensors are missing: layers.3.router.scale"));
  Write({}, "model.");
  EXPECT_THAT(Problem(plan), HasSubstr("tensors are missing: embed_tokens.weight,"));
  EXPECT_THAT(Problem(plan), HasSubstr("more"));
}

TEST_F(CheckpointSourceTest, NamesUnexpectedTensors) {
  const ModelPlan plan = TinyPlan("tiny-dense");
  auto tensors = TensorsOf(plan);
  tensors.push_back({"layers.2.self_attn.v_proj.weight", {512, 96}});  // K is V: no such tensor
  Write(tensors, "model.");
  EXPECT_THAT(Problem(plan),
              HasSubstr("1 tensors do not belong to the model config.json describes: "
                        "layers.2.self_attn.v_proj.weight"));
}

TEST_F(CheckpointSourceTest, NamesTensorsOfTheWrongShapeOrType) {
  const ModelPlan plan = TinyPlan("tiny-dense");
  auto tensors = TensorsOf(plan);
  auto& norm = *std::find_if(tensors.begin(), tensors.end(),
                             [](const auto& tensor) { return tensor.name == "norm.weight"; });
  norm.shape = {97};
  Write(tensors, "model.");
  EXPECT_THAT(Problem(plan), HasSubstr("norm.weight has shape [97], config.json asks for [96]"));
  norm.shape = {96, 1};
  Write(tensors, "model.");
  EXPECT_THAT(Problem(plan), HasSubstr("norm.weight has shape [96, 1]"));
  norm.shape = {96};
  for (const DType dtype : {DType::kI8, DType::kF8E4M3, DType::kF64}) {
    norm.dtype = dtype;
    Write(tensors, "model.");
    EXPECT_THAT(Problem(plan),
                HasSubstr(fmt::format("norm.weight is {}; weights must be", DTypeName(dtype))));
  }
}

TEST_F(CheckpointSourceTest, PrefaultReadsTheWholeFile) {
  const ModelPlan plan = TinyPlan("tiny-e");
  Write(TensorsOf(plan), "model.");
  const auto source = CheckpointSource::Open(directory_, plan);
  ASSERT_TRUE(source.ok());
  ThreadPool threads(2);
  PrefaultWeights(plan, **source, threads);
}

TEST(DummySource, RefusesWeightsBeyondTheAvailableMemory) {
  const ModelPlan plan = TinyPlan("tiny-dense");
  ThreadPool threads(1);
  int64_t bytes = 0;  // each tensor begins on a multiple of 64 bytes
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    bytes += (2 * spec.num_elements() + 63) / 64 * 64;
  }
  EXPECT_TRUE(DummySource::Make(plan, 1, threads, bytes).ok());
  const auto refused = DummySource::Make(plan, 1, threads, bytes - 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("dummy weights need"));
}

TEST(DummySource, NamesBothAmountsForAModelFarTooLarge) {
  ThreadPool threads(1);
  const auto refused = DummySource::Make(TinyPlan("31b"), 1, threads, int64_t{8} << 30);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "dummy weights need 61.4 GB of memory and 8.6 GB are available");
}

TEST(DummySource, ReadsTheAvailableMemoryOfThisMachine) {
  EXPECT_GT(AvailableMemoryBytes(), int64_t{1} << 20);
}

TEST(DummySource, HoldsTheSyntheticValuesWhateverTheThreads) {
  const ModelPlan plan = TinyPlan("tiny-moe");
  ThreadPool one(1), three(3);
  const auto a = DummySource::Make(plan, 7, one).value();
  const auto b = DummySource::Make(plan, 7, three).value();
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    const TensorView tensor = *a->Get(spec);
    ASSERT_EQ(tensor.shape, spec.shape);
    std::vector<float> expected(spec.num_elements());
    FillSynthetic(spec, 7, 0, expected);
    for (float& value : expected) value = Bf16ToFloat(FloatToBf16(value));
    ASSERT_EQ(ToFloats(tensor), expected) << spec.name;
    ASSERT_EQ(std::memcmp(tensor.data, b->Get(spec)->data, tensor.num_bytes()), 0) << spec.name;
  }
}

TEST(SyntheticValues, AnElementDependsOnItsIndexAlone) {
  const TensorSpec spec{.name = "w",
                        .shape = {100, 100},
                        .component = TensorComponent::kMlp,
                        .role = TensorRole::kMatrix};
  std::vector<float> whole(10000), part(97);
  FillSynthetic(spec, 3, 0, whole);
  for (const int64_t first : {0, 1, 4095, 9903}) {
    FillSynthetic(spec, 3, first, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first;
  }
  std::vector<float> other(10000);
  FillSynthetic(spec, 4, 0, other);
  EXPECT_NE(whole, other);
  double sum = 0, squares = 0;
  for (const float value : whole) {
    sum += value;
    squares += value * value;
  }
  // Standard deviation 1/sqrt(100); the estimates from 10,000 draws are off by five sigma at most.
  EXPECT_NEAR(sum / 10000, 0.0, 5 * 0.1 / 100);
  EXPECT_NEAR(squares / 10000, 0.01, 5 * 0.01 * std::sqrt(2.0) / 100);
}

TEST(BindWeights, BindsEveryTensorOfEveryTinyModel) {
  for (const char* preset : {"tiny-e", "tiny-moe", "tiny-dense"}) {
    const ModelPlan plan = TinyPlan(preset);
    ThreadPool threads(1);
    const auto source = DummySource::Make(plan, 1, threads).value();
    const auto weights = BindWeights(plan, *source);
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    ASSERT_EQ(weights->layers.size(), plan.layers.size());
    for (const LayerPlan& layer : plan.layers) {
      const LayerWeights& bound = weights->layers[layer.index];
      EXPECT_EQ(bound.attention.k_proj.data != nullptr, layer.owns_kv());
      EXPECT_EQ(bound.attention.v_proj.data != nullptr, layer.owns_kv() && !layer.k_is_v);
      EXPECT_EQ(bound.attention.k_norm.size(), layer.owns_kv() ? layer.head_dim : 0u);
      EXPECT_EQ(bound.moe.router_proj.data != nullptr, layer.has_moe);
      EXPECT_EQ(bound.ple.gate.data != nullptr, plan.ple.has_value());
      EXPECT_EQ(bound.attention.qkv_proj.data, nullptr);  // nothing lies side by side here
      EXPECT_NE(bound.layer_scalar, 1.0f);
    }
  }
}

// Puts matrices behind each other, as a device does; nobody reads them here.
struct StackingStorage {
  using Vector = int;
  static constexpr bool kStacksRows = true;

  Result<MatrixRef> GetMatrix(const TensorSpec& spec) {
    const MatrixRef matrix = MatrixOf({next, DType::kBF16, spec.shape});
    next += matrix.bytes().data;
    return matrix;
  }
  Result<int> GetVector(const TensorSpec&) { return 0; }
  Result<float> GetScalar(const TensorSpec&) { return 1.0f; }

  const std::byte* next = reinterpret_cast<const std::byte*>(uintptr_t{4096});
};

TEST(BindWeights, MatricesOfOneInputAreOneMatrixWhereTheyLieBehindEachOther) {
  for (const char* preset : {"tiny-e", "tiny-moe", "tiny-dense"}) {
    const ModelPlan plan = TinyPlan(preset);
    StackingStorage storage;
    const auto weights = BindWeightsTo(plan, storage);
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    for (const LayerPlan& layer : plan.layers) {
      const auto& bound = weights->layers[layer.index];
      EXPECT_EQ(bound.attention.qkv_proj.data, bound.attention.q_proj.data);
      EXPECT_EQ(bound.attention.qkv_proj.rows, layer.num_qkv_heads() * layer.head_dim);
      EXPECT_EQ(bound.attention.qkv_proj.cols, plan.hidden_size);
      EXPECT_EQ(bound.mlp.gate_up_proj.data, bound.mlp.gate_proj.data);
      EXPECT_EQ(bound.mlp.gate_up_proj.rows, 2 * layer.mlp_width);
    }
  }
}

}  // namespace
}  // namespace lapidary
