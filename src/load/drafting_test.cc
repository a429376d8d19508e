#include "load/drafting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "load/load_model.h"
#include "model/assistant_preset.h"
#include "synth/synth.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DraftingTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) / fmt::format("drafting_{}_{}", info->name(), getpid());
    fs::remove_all(root_);
    ASSERT_TRUE(
        WriteSyntheticCheckpoint(DescribeModel("tiny-e")->config, {}, root_ / "model", threads_)
            .ok());
  }
  void TearDown() override { fs::remove_all(root_); }

  void WriteAssistant(const std::string& preset, const fs::path& directory) {
    const Status status =
        WriteSyntheticAssistant(*AssistantPresetConfig(preset), {}, directory, threads_);
    ASSERT_TRUE(status.ok()) << status.error().message;
  }
  // The name of the assistant, "none", or the error.
  std::string Load(const DraftingRequest& request) {
    const auto drafter = LoadDrafter(DescribeModel((root_ / "model").string()).value(), request,
                                     std::nullopt, threads_);
    if (!drafter.ok()) return drafter.error().message;
    return *drafter ? fs::path((*drafter)->name).lexically_relative(root_).string() : "none";
  }

  fs::path root_;
  ThreadPool threads_{1};
};

TEST_F(DraftingTest, TheAssistantBesideAModelPairsWithIt) {
  EXPECT_EQ(Load({}), "none");
  WriteAssistant("tiny-e", root_ / "model" / "assistant");
  EXPECT_EQ(Load({}), "model/assistant");
  WriteAssistant("tiny-e", root_ / "model-assistant");
  EXPECT_EQ(Load({}), "model-assistant");
  WriteAssistant("tiny-e", root_ / "other");
  EXPECT_EQ(Load({.assistant = (root_ / "other").string()}), "other");
  EXPECT_EQ(Load({.enabled = false, .assistant = (root_ / "other").string()}), "none");
}

TEST_F(DraftingTest, APairThatDoesNotFitIsRefused) {
  WriteAssistant("tiny-moe", root_ / "model-assistant");
  EXPECT_THAT(Load({}), HasSubstr("backbone_hidden_size is 80, the model's 96"));
  EXPECT_THAT(Load({}), HasSubstr("--no-spec"));
  EXPECT_EQ(Load({.enabled = false}), "none");
  EXPECT_THAT(Load({.assistant = "nowhere"}), HasSubstr("no checkpoint directory"));
  EXPECT_THAT(Load({.assistant = (root_ / "model").string()}),
              HasSubstr("is not a Gemma 4 drafting assistant"));
}

TEST_F(DraftingTest, ABrokenFileIsRefused) {
  WriteAssistant("tiny-e", root_ / "model-assistant");
  const fs::path file = root_ / "model-assistant" / "model.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-8, std::ios::end);  // the last entry of the token ordering
  stream.write("\0\0\0\0\0\0\0\0", 8);
  stream.close();
  EXPECT_THAT(Load({}), HasSubstr("must list every token id once; 0 is outside or repeated"));
}

TEST_F(DraftingTest, RandomWeightsDraftOnlyWhenAskedTo) {
  const ModelDescription preset = DescribeModel("tiny-moe").value();
  EXPECT_FALSE(LoadDrafter(preset, {}, 3, threads_).value());
  EXPECT_TRUE(LoadDrafter(preset, {.assistant = "tiny-moe"}, 3, threads_).value());
  DraftingRequest simulated;
  simulated.num_drafts = 3;
  simulated.simulated_accept_length = 2.5;
  const auto drafter = LoadDrafter(preset, simulated, 3, threads_).value();
  ASSERT_TRUE(drafter);
  EXPECT_EQ(drafter->options.simulated_rates.size(), 3u);
  simulated.simulated_accept_length = 4.5;
  EXPECT_THAT(LoadDrafter(preset, simulated, 3, threads_).error().message,
              HasSubstr("gives 1 to 4 tokens"));
}

TEST_F(DraftingTest, TheEngineDraftsAsManyAsAskedFor) {
  WriteAssistant("tiny-e", root_ / "model-assistant");
  LoadOptions options;
  options.max_tokens = 64;
  options.num_threads = 1;
  options.drafting.num_drafts = 2;
  const auto loaded = LoadEngine(DescribeModel((root_ / "model").string()).value(), options, {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->engine->options().limits.num_drafts, 2);
  EXPECT_TRUE(loaded->engine->options().adapt_drafts);
  options.drafting.enabled = false;
  const auto plain = LoadEngine(DescribeModel((root_ / "model").string()).value(), options, {});
  EXPECT_EQ(plain->engine->options().limits.num_drafts, 0);
}

}  // namespace
}  // namespace lapidary
