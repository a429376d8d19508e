// Whole models with weights in blocks, in FP8 and in NVFP4: of every format, wide enough for the
// largest blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "executor/cpu/cpu_executor.h"
#include "model/tensor_sources.h"
#include "ops/cpu/random_blocks.h"
#include "tensor/decode.h"
#include "tensor/random_matrix.h"
#include "tests/step_testing.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr int kNumTokens = 37;

// Random blocks, or the floats they stand for, in place of some tensors.
class ReplacedSource : public TensorSource {
 public:
  explicit ReplacedSource(std::shared_ptr<const TensorSource> rest) : rest_(std::move(rest)) {}
  Result<TensorView> Get(const TensorSpec& spec) const override {
    const auto it = replaced.find(spec.name);
    if (it == replaced.end()) return rest_->Get(spec);
    return it->second;
  }
  Result<std::vector<MatrixRef>> GetStored(const TensorSpec& spec) const override {
    const auto it = codes.find(spec.name);
    if (it == codes.end()) return TensorSource::GetStored(spec);
    return std::vector<MatrixRef>{it->second};
  }
  std::map<std::string, TensorView> replaced;
  std::map<std::string, MatrixRef> codes;

 private:
  const std::shared_ptr<const TensorSource> rest_;
};

Logits LogitsOf(const ModelPlan& plan, const std::shared_ptr<ReplacedSource>& source,
                bool fast_math, const std::vector<int>& chunks) {
  const auto executor =
      cpu::CpuExecutor::Create(plan, source,
                               {.num_threads = 2, .num_pages = 200, .fast_math = fast_math})
          .value();
  return RunInChunks(*executor, RandomTokens(plan, 1, kNumTokens), chunks);
}

struct BlockModel {
  ModelPlan plan;
  std::vector<std::unique_ptr<cpu::RandomBlocks>> memory;
  std::shared_ptr<ReplacedSource> blocks;
  std::shared_ptr<ReplacedSource> floats;

  BlockModel(const std::string& name, DType dtype, Json changes = Json::object()) {
    changes["hidden_size"] = 256;
    changes["intermediate_size"] = 512;
    changes["moe_intermediate_size"] = 256;
    changes["hidden_size_per_layer_input"] = name == "tiny-e" ? 256 : 0;
    plan = TestPlan(name, changes);
    ThreadPool threads(2);
    std::shared_ptr<const TensorSource> rest = DummySource::Make(plan, /*seed=*/3, threads).value();
    blocks = std::make_shared<ReplacedSource>(rest);
    floats = std::make_shared<ReplacedSource>(rest);
    cpu::Random random(7);
    for (const TensorSpec& spec : RequiredTensors(plan)) {
      if (spec.shape.size() < 2 || spec.role == TensorRole::kRouter) continue;
      const int cols = static_cast<int>(spec.shape.back());
      const int rows = static_cast<int>(spec.num_elements() / cols);
      const auto& made =
          memory.emplace_back(std::make_unique<cpu::RandomBlocks>(dtype, rows, cols, random));
      blocks->replaced[spec.name] = {static_cast<const std::byte*>(made->matrix.data), dtype,
                                     spec.shape};
      floats->replaced[spec.name] = {reinterpret_cast<const std::byte*>(made->values.data()),
                                     DType::kF32, spec.shape};
    }
  }

  Logits Run(const std::shared_ptr<ReplacedSource>& source, bool fast_math,
             const std::vector<int>& chunks) const {
    return LogitsOf(plan, source, fast_math, chunks);
  }
};

// Codes of floats in place of matrices and embeddings.
struct CodeModel {
  ModelPlan plan;
  std::vector<std::unique_ptr<RandomMatrix>> memory;
  std::vector<std::vector<float>> values;
  std::shared_ptr<ReplacedSource> codes;
  std::shared_ptr<ReplacedSource> floats;

  CodeModel(const std::string& name, const WeightFormat& format)
      : plan(TestPlan(name, Json::object())) {
    ThreadPool threads(2);
    std::shared_ptr<const TensorSource> rest = DummySource::Make(plan, /*seed=*/3, threads).value();
    codes = std::make_shared<ReplacedSource>(rest);
    floats = std::make_shared<ReplacedSource>(rest);
    uint32_t seed = 7;
    for (const TensorSpec& spec : RequiredTensors(plan)) {
      if (spec.shape.size() < 2 || spec.role == TensorRole::kRouter) continue;
      const int cols = static_cast<int>(spec.shape.back());
      if (format.group.cols == 16 && cols % 16 != 0) continue;
      const int rows = static_cast<int>(spec.num_elements() / cols);
      // Experts are taken apart, and so have no square over two of them.
      WeightFormat own = format;
      if (spec.component == TensorComponent::kExperts && spec.shape.size() == 3) {
        own.group.rows = std::gcd(own.group.rows, static_cast<int>(spec.shape[1]));
      }
      const auto& made =
          memory.emplace_back(std::make_unique<RandomMatrix>(own, rows, cols, seed++));
      codes->codes[spec.name] = made->matrix();
      values.push_back(DecodeMatrix(made->matrix()));
      floats->replaced[spec.name] = {reinterpret_cast<const std::byte*>(values.back().data()),
                                     DType::kF32, spec.shape};
    }
  }
};

class BlockModelTest : public testing::TestWithParam<std::string> {};

TEST_P(BlockModelTest, LogitsAreThoseOfTheFloatsBitForBit) {
  for (const DType dtype : cpu::kBlockTypes) {
    const BlockModel model(GetParam(), dtype);
    const Logits expected = model.Run(model.floats, /*fast_math=*/false, {kNumTokens});
    for (const float logit : expected) ASSERT_TRUE(std::isfinite(logit)) << DTypeName(dtype);
    ExpectSameBits(model.plan, expected, model.Run(model.blocks, false, {kNumTokens}),
                   DTypeName(dtype));
    ExpectSameBits(model.plan, expected, model.Run(model.blocks, false, {1, 7}),
                   std::string(DTypeName(dtype)) + " in chunks");
  }
}

TEST_P(BlockModelTest, LogitsOfFp8AndNvfp4AreThoseOfTheirFloatsBitForBit) {
  for (const WeightFormat& format : StoredFormats()) {
    if (!format.is_float_codes()) continue;
    const CodeModel model(GetParam(), format);
    const auto run = [&](const std::shared_ptr<ReplacedSource>& source, int chunk) {
      return LogitsOf(model.plan, source, /*fast_math=*/false, {chunk});
    };
    const Logits expected = run(model.floats, kNumTokens);
    for (const float logit : expected) ASSERT_TRUE(std::isfinite(logit)) << FormatName(format);
    ExpectSameBits(model.plan, expected, run(model.codes, kNumTokens), FormatName(format));
    ExpectSameBits(model.plan, expected, run(model.codes, 1), FormatName(format) + " one by one");
  }
}

TEST_P(BlockModelTest, WithFastMathEveryModeHasTheSameBits) {
  for (const DType dtype : cpu::kBlockTypes) {
    const BlockModel model(GetParam(), dtype);
    const Logits expected = model.Run(model.blocks, /*fast_math=*/true, {kNumTokens});
    ExpectSameBits(model.plan, expected, model.Run(model.blocks, true, {1}),
                   std::string(DTypeName(dtype)) + " one by one");
    ExpectSameBits(model.plan, expected, model.Run(model.blocks, true, {5, 17}),
                   std::string(DTypeName(dtype)) + " in chunks");
    // Rounded, and near what is not, as far as a random model keeps near what was.
    const Logits exact = model.Run(model.blocks, false, {kNumTokens});
    double squares = 0.0, errors = 0.0;
    for (size_t idx = 0; idx < exact.size(); ++idx) {
      squares += double{exact[idx]} * double{exact[idx]};
      errors += std::pow(double{exact[idx]} - double{expected[idx]}, 2);
    }
    EXPECT_GT(errors, 0.0) << DTypeName(dtype);
    EXPECT_LT(std::sqrt(errors / squares), 0.5) << DTypeName(dtype);
  }
}

TEST_P(BlockModelTest, AHeadOfItsOwnGivesTheLogits) {
  const BlockModel tied(GetParam(), DType::kQ8_0);
  const BlockModel model(GetParam(), DType::kQ8_0, {{"tie_word_embeddings", false}});
  const auto twice = std::make_shared<ReplacedSource>(tied.blocks);
  const TensorView table = tied.blocks->replaced.at("embed_tokens.weight");
  twice->replaced[kHeadName] = table;
  ExpectSameBits(tied.plan, tied.Run(tied.blocks, false, {kNumTokens}),
                 model.Run(twice, false, {kNumTokens}), "a head with the embeddings' rows");
  twice->replaced[kHeadName] = model.blocks->replaced.at(kHeadName);
  EXPECT_NE(tied.Run(tied.blocks, false, {kNumTokens}), model.Run(twice, false, {kNumTokens}));
}

INSTANTIATE_TEST_SUITE_P(All, BlockModelTest, testing::Values("tiny-e", "tiny-moe", "tiny-dense"),
                         ModelTestName);

}  // namespace
}  // namespace lapidary
