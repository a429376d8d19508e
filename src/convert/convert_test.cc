#include "convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gguf/gguf_config.h"
#include "gguf/gguf_source.h"
#include "load/drafting.h"
#include "load/stored_weights.h"
#include "model/assistant_preset.h"
#include "model/tensor_sources.h"
#include "synth/synth.h"
#include "tensor/block_formats.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

class ConvertTest : public testing::Test {
 protected:
  ConvertTest()
      : directory_(std::filesystem::path(testing::TempDir()) /
                   testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(directory_);
  }
  ~ConvertTest() override { std::filesystem::remove_all(directory_); }

  const std::filesystem::path directory_;
};

TEST_F(ConvertTest, AFileHoldsThePlanAndEveryTensorWithinItsError) {
  ThreadPool threads(2);
  for (const char* preset : {"tiny-e", "tiny-moe", "tiny-dense"}) {
    const ModelDescription model = DescribeModel(preset).value();
    const auto source = DummySource::Make(model.plan, 1, threads).value();
    const std::filesystem::path path = directory_ / fmt::format("{}.gguf", preset);
    const auto converted = ConvertToGguf(model, *source, DType::kQ4_0, path, threads);
    ASSERT_TRUE(converted.ok()) << converted.error().message;
    GgufCheckpoint file = GgufCheckpoint::Open(path).value();
    const auto config = ConfigFromGguf(file);
    ASSERT_TRUE(config.ok()) << config.error().message;
    const ModelPlan plan = MakeModelPlan(ParseModelConfig(*config, "test").value()).value();
    const auto read = GgufSource::Open(std::move(file), plan);
    ASSERT_TRUE(read.ok()) << read.error().message;
    int num_quantised = 0;
    for (const TensorSpec& spec : RequiredTensors(model.plan)) {
      const TensorView tensor = (*read)->Get(spec).value();
      const std::vector<float> got = ToFloats(tensor);
      const std::vector<float> want = ToFloats(source->Get(spec).value());
      num_quantised += tensor.dtype == DType::kQ4_0;
      double squares = 0.0, errors = 0.0;
      for (size_t idx = 0; idx < want.size(); ++idx) {
        squares += double{want[idx]} * double{want[idx]};
        errors += (double{got[idx]} - double{want[idx]}) * (double{got[idx]} - double{want[idx]});
      }
      // A step is 1/8 of a block's largest value: an error of 1/16 of it at most, and of it alone
      // where a code is missing.
      const double limit = tensor.dtype == DType::kQ4_0   ? 0.2
                           : tensor.dtype == DType::kQ8_0 ? 0.02
                                                          : 0.0;
      EXPECT_LE(std::sqrt(errors), limit * std::sqrt(squares)) << spec.name;
    }
    EXPECT_GT(num_quantised, model.plan.num_layers);
  }
}

// Wide enough for whole blocks of 256 in some matrices; the others fall back.
TEST_F(ConvertTest, RowsThatAreNoWholeBlocksOfQ4KAreQ5_0) {
  ThreadPool threads(2);
  ModelDescription model = DescribeModel("tiny-moe").value();
  model.config["hidden_size"] = 256;
  model.plan = MakeModelPlan(ParseModelConfig(model.config, "test").value()).value();
  const auto source = DummySource::Make(model.plan, 1, threads).value();
  const auto converted =
      ConvertToGguf(model, *source, DType::kQ4_K, directory_ / "a.gguf", threads).value();
  std::map<DType, int> count;
  for (const ConvertedTensor& tensor : converted) {
    ++count[tensor.dtype];
    const double limit = tensor.dtype == DType::kQ4_K ? 0.09 : 0.06;
    EXPECT_LT(tensor.relative_error, limit) << tensor.name;
  }
  EXPECT_GT(count[DType::kQ4_K], model.plan.num_layers);
  EXPECT_GE(count[DType::kQ5_0], model.plan.num_layers);  // down_proj
  EXPECT_EQ(count[DType::kQ8_0], 1);
}

TEST_F(ConvertTest, AHeadOfItsOwnIsWrittenAndRead) {
  ThreadPool threads(2);
  ModelDescription model = DescribeModel("tiny-dense").value();
  model.config["tie_word_embeddings"] = false;
  model.plan = MakeModelPlan(ParseModelConfig(model.config, "test").value()).value();
  const auto source = DummySource::Make(model.plan, 1, threads).value();
  const std::filesystem::path path = directory_ / "a.gguf";
  ASSERT_TRUE(ConvertToGguf(model, *source, DType::kQ8_0, path, threads).ok());
  const ModelDescription read = DescribeModel(path.string()).value();
  ASSERT_TRUE(read.plan.has_own_head);
  const auto file = OpenStoredWeights(read).value();
  const TensorSpec spec = RequiredTensors(read.plan).back();
  ASSERT_EQ(spec.name, kHeadName);
  const std::vector<float> got = ToFloats(file->Get(spec).value());
  const std::vector<float> want = ToFloats(source->Get(spec).value());
  for (size_t idx = 0; idx < want.size(); ++idx) ASSERT_NEAR(got[idx], want[idx], 0.05) << idx;
}

TEST_F(ConvertTest, AnAssistantBesideItsModelIsFound) {
  ThreadPool threads(2);
  const ModelDescription model = DescribeModel("tiny-e").value();
  const auto source = DummySource::Make(model.plan, 1, threads).value();
  ASSERT_TRUE(ConvertToGguf(model, *source, DType::kQ8_0, directory_ / "a.gguf", threads).ok());
  const ModelDescription read = DescribeModel((directory_ / "a.gguf").string()).value();
  EXPECT_FALSE(LoadDrafter(read, {}, std::nullopt, threads).value());

  const fs::path assistant = directory_ / "assistant";
  ASSERT_TRUE(
      WriteSyntheticAssistant(*AssistantPresetConfig("tiny-e"), {}, assistant, threads).ok());
  ASSERT_TRUE(IsAssistantDirectory(assistant));
  const UnpairedAssistant unpaired = OpenUnpairedAssistant(assistant, threads).value();
  ASSERT_TRUE(ConvertToGguf(unpaired.plan, *unpaired.source, DType::kQ8_0,
                            directory_ / "a-assistant.gguf", threads)
                  .ok());
  const auto drafter = LoadDrafter(read, {}, std::nullopt, threads);
  ASSERT_TRUE(drafter.ok()) << drafter.error().message;
  ASSERT_TRUE(*drafter);
  EXPECT_THAT((*drafter)->name, testing::EndsWith("a-assistant.gguf"));
  EXPECT_FALSE((*drafter)->options.plan.ordered_head);
  int num_quantised = 0;
  for (const TensorSpec& spec : RequiredTensors((*drafter)->options.plan)) {
    const TensorView tensor = (*drafter)->options.source->Get(spec).value();
    num_quantised += tensor.dtype == DType::kQ8_0;
    const std::vector<float> got = ToFloats(tensor);
    const std::vector<float> want = ToFloats(unpaired.source->Get(spec).value());
    for (size_t idx = 0; idx < want.size(); ++idx) {
      ASSERT_NEAR(got[idx], want[idx], 0.05) << spec.name << " " << idx;
    }
  }
  EXPECT_GT(num_quantised, 4);
}

TEST_F(ConvertTest, AFileThatCannotBeWrittenLeavesNothing) {
  ThreadPool threads(1);
  const ModelDescription model = DescribeModel("tiny-dense").value();
  const auto source = DummySource::Make(model.plan, 1, threads).value();
  const auto converted =
      ConvertToGguf(model, *source, DType::kQ8_0, directory_ / "none" / "a.gguf", threads);
  ASSERT_FALSE(converted.ok());
  EXPECT_THAT(converted.error().message, testing::HasSubstr("cannot write"));
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

}  // namespace
}  // namespace lapidary
