#include "media/resize.h"

#include <gtest/gtest.h>

#include "media/image_size.h"
#include "media/patches.h"

namespace lapidary {
namespace {

struct SizeCase {
  PatchGrid grid;
  int64_t max_patches;
  ImageSize from;
  ImageSize to;
};

TEST(TargetSizeTest, FillsTheBudgetAsTheReferenceDoes) {
  const PatchGrid gemma;
  const std::vector<SizeCase> cases = {
      {{16, 1}, 256, {512, 512}, {256, 256}},    {{10, 1}, 200, {50, 10000}, {10, 2000}},
      {{10, 1}, 200, {25, 20000}, {10, 2000}},   {{16, 6}, 2304, {2785, 34}, {6144, 96}},
      {{4, 2}, 64, {50, 1000}, {8, 128}},        {{5, 3}, 100, {100, 100}, {45, 45}},
      {{5, 3}, 20, {5, 100}, {15, 30}},          {gemma, 9 * 70, {224, 224}, {384, 384}},
      {gemma, 9 * 280, {480, 640}, {672, 912}},  {gemma, 9 * 1120, {1080, 1920}, {1200, 2112}},
      {gemma, 9 * 140, {100, 2000}, {96, 2496}}, {gemma, 9 * 70, {10, 2000}, {48, 3360}},
      {gemma, 9 * 560, {10, 2000}, {48, 16032}}, {gemma, 9 * 560, {2000, 10}, {16032, 48}},
  };
  for (const SizeCase& test : cases) {
    const auto size = TargetSize(test.from, test.grid, test.max_patches);
    ASSERT_TRUE(size.ok()) << size.error().message;
    EXPECT_EQ(size->height, test.to.height) << test.from.height << " x " << test.from.width;
    EXPECT_EQ(size->width, test.to.width) << test.from.height << " x " << test.from.width;
  }
  EXPECT_EQ(NumSoftTokens({672, 912}, gemma), 266);
}

TEST(TargetSizeTest, RefusesABudgetWithoutRoomForACell) {
  EXPECT_FALSE(TargetSize({100, 100}, {5, 3}, 5).ok());
}

TEST(SoftTokenBudgetTest, IsOneOfFive) {
  EXPECT_TRUE(CheckSoftTokenBudget(70).ok());
  EXPECT_TRUE(CheckSoftTokenBudget(1120).ok());
  const Status status = CheckSoftTokenBudget(100);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "max_soft_tokens is 100; it must be 70, 140, 280, 560 or 1120");
}

TEST(ResizeTest, KeepsAFlatPictureFlat) {
  const Image flat{31, 57, std::vector<uint8_t>(size_t{3} * 31 * 57, 201)};
  const Image resized = ResizeBicubic(flat, {96, 48});
  ASSERT_EQ(resized.rgb.size(), size_t{3} * 96 * 48);
  for (const uint8_t value : resized.rgb) ASSERT_EQ(value, 201);
}

TEST(PatchesTest, AreRowMajorWithChannelsInside) {
  Image image{4, 6, std::vector<uint8_t>(size_t{3} * 4 * 6)};
  for (size_t idx = 0; idx < image.rgb.size(); ++idx) image.rgb[idx] = static_cast<uint8_t>(idx);
  const ImagePatches patches = CutPatches(image, 2);
  EXPECT_EQ(patches.grid_height, 2);
  EXPECT_EQ(patches.grid_width, 3);
  // Patch 4 is at grid row 1, column 1: pixels (2, 2), (2, 3), (3, 2), (3, 3).
  const float* patch = patches.values.data() + 4 * patches.patch_values();
  const std::vector<int> pixels = {2 * 6 + 2, 2 * 6 + 3, 3 * 6 + 2, 3 * 6 + 3};
  for (int idx = 0; idx < patches.patch_values(); ++idx) {
    const int value = 3 * pixels[idx / 3] + idx % 3;
    EXPECT_FLOAT_EQ(patch[idx], static_cast<float>(value) / 255.0f) << idx;
  }
}

}  // namespace
}  // namespace lapidary
