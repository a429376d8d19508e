#include "towers/cuda/tower_memory.h"

#include <gtest/gtest.h>

namespace lapidary::cuda {
namespace {

TowersPlan PlanOf(const char* architecture, int text_hidden) {
  const Json config = {{"architectures", {architecture}},
                       {"text_config", {{"hidden_size", text_hidden}}},
                       {"vision_config", Json::object()},
                       {"audio_config", Json::object()}};
  return MakeTowersPlan(config, "test").value();
}

TEST(TowerMemoryTest, E4bNeedsHalfAGigabyteForImagesAndMoreForAudio) {
  const TowersPlan plan = PlanOf("Gemma4ForConditionalGeneration", 2560);
  const int64_t images = TowerDeviceBytes(plan, true, false);
  const int64_t audio = TowerDeviceBytes(plan, false, true);
  EXPECT_NEAR(static_cast<double>(images), 0.6e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(audio), 0.7e9, 0.1e9);
  // A slab is shared.
  EXPECT_LE(TowerDeviceBytes(plan, true, true), images + audio);
  EXPECT_GT(TowerDeviceBytes(plan, true, true), images + audio - kTowerSlabBytes - 1);
}

TEST(TowerMemoryTest, TowersThatAreNotWantedTakeNothing) {
  EXPECT_EQ(TowerDeviceBytes(PlanOf("Gemma4ForConditionalGeneration", 1536), false, false), 0);
  EXPECT_EQ(TowerDeviceBytes(TowersPlan{}, true, true), 0);
}

TEST(TowerMemoryTest, TheUnifiedKindNeedsLittle) {
  const TowersPlan plan = PlanOf("Gemma4UnifiedForConditionalGeneration", 3840);
  EXPECT_NEAR(static_cast<double>(TowerDeviceBytes(plan, true, true)), 0.2e9, 0.06e9);
}

}  // namespace
}  // namespace lapidary::cuda
