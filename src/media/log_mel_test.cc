#include "media/log_mel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>

namespace lapidary {
namespace {

TEST(LogMelTest, CountsFramesAsTheReferenceDoes) {
  const std::map<int64_t, int> frames = {{0, 0},        {160, 0},       {161, 1},      {640, 3},
                                         {1600, 9},     {8000, 49},     {16000, 99},   {80000, 499},
                                         {160000, 999}, {480000, 2999}, {900000, 2999}};
  for (const auto& [num_samples, num_frames] : frames) {
    EXPECT_EQ(NumMelFrames(num_samples), num_frames) << num_samples;
  }
}

TEST(LogMelTest, SilenceIsTheFloor) {
  const std::vector<float> mel = LogMel(std::vector<float>(800));
  ASSERT_EQ(mel.size(), size_t{4} * kNumMelBands);
  for (const float value : mel) EXPECT_FLOAT_EQ(value, std::log(0.001f));
}

TEST(LogMelTest, AToneIsLoudestInItsBand) {
  constexpr double kHertz = 1000.0;
  std::vector<float> samples(3200);
  for (size_t idx = 0; idx < samples.size(); ++idx) {
    samples[idx] = static_cast<float>(
        0.5 * std::sin(2.0 * std::numbers::pi * kHertz * static_cast<double>(idx) / 16000.0));
  }
  const std::vector<float> mel = LogMel(samples);
  const float* frame = mel.data() + size_t{10} * kNumMelBands;
  const auto loudest = std::max_element(frame, frame + kNumMelBands) - frame;
  // Band b peaks at mel (b + 1) * 2840.02 / 129; 1000 Hz is mel 999.99.
  EXPECT_NEAR(static_cast<double>(loudest), 1000.0 / (2840.02 / 129) - 1.0, 1.0);
}

}  // namespace
}  // namespace lapidary
