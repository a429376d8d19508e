#include "hub/known_models.h"

#include <gtest/gtest.h>

#include "hub/model_name.h"

namespace lapidary::hub {
namespace {

constexpr int64_t kGb = 1'000'000'000;

std::string SuggestedName(int64_t gpu_bytes, int64_t memory_bytes) {
  const auto suggestion = SuggestModel(gpu_bytes, memory_bytes);
  return suggestion ? suggestion->name : "";
}

TEST(KnownModelsTest, EveryShortNameAndSuggestionIsAName) {
  for (const KnownModel& model : KnownModels()) {
    EXPECT_TRUE(ParseModelName(model.short_name).ok());
    EXPECT_TRUE(IsRepoName(CheckpointRepo(model)));
    EXPECT_EQ(AssistantRepo(CheckpointRepo(model)), CheckpointRepo(model) + "-assistant");
  }
}

TEST(KnownModelsTest, AssistantsArePairedBySizeAndByTraining) {
  EXPECT_EQ(AssistantRepo("google/gemma-4-E2B-it-qat-q4_0-gguf"),
            "google/gemma-4-E2B-it-qat-q4_0-unquantized-assistant");
  EXPECT_EQ(AssistantRepo("google/gemma-4-31B-it-qat-w4a16-ct"),
            "google/gemma-4-31B-it-qat-q4_0-unquantized-assistant");
  EXPECT_EQ(AssistantRepo("RedHatAI/gemma-4-26b-a4b-it-FP8-dynamic"),
            "google/gemma-4-26B-A4B-it-assistant");
  EXPECT_EQ(AssistantRepo("nvidia/Gemma-4-31B-IT-NVFP4"), "google/gemma-4-31B-it-assistant");
  for (const char* repo : {"google/gemma-4-E2B", "google/gemma-4-E2B-it-assistant",
                           "google/gemma-3-27b-it", "someone/other"}) {
    EXPECT_EQ(AssistantRepo(repo), std::nullopt) << repo;
  }
}

TEST(KnownModelsTest, TheLargestModelThatFitsIsSuggested) {
  EXPECT_EQ(SuggestedName(0, 4 * kGb), "");
  EXPECT_EQ(SuggestedName(0, 8 * kGb), "e2b:q4_0");
  EXPECT_EQ(SuggestedName(0, 16 * kGb), "e4b:q4_0");
  // A CPU would read all of 12B or 31B for every token.
  EXPECT_EQ(SuggestedName(0, 20 * kGb), "e4b:q4_0");
  EXPECT_EQ(SuggestedName(0, 500 * kGb), "26b-a4b:q4_0");
  EXPECT_EQ(SuggestedName(80 * kGb, 500 * kGb), "31b");
  EXPECT_EQ(SuggestedName(48 * kGb, 500 * kGb), "12b");
}

}  // namespace
}  // namespace lapidary::hub
