#include "towers/shared_towers.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

namespace lapidary {
namespace {

// Answers with each image's own first value. The first call waits until it is let go.
class GatedTowers : public MediaTowers {
 public:
  std::vector<std::vector<float>> EncodeImages(
      std::span<const ImagePatches* const> images) override {
    batch_sizes.push_back(images.size());
    if (batch_sizes.size() == 1) {
      has_begun.set_value();
      may_end.get_future().wait();
    }
    if (fails) throw std::runtime_error("the device failed");
    std::vector<std::vector<float>> rows;
    for (const ImagePatches* image : images) rows.push_back({image->values[0]});
    return rows;
  }
  bool gains_by_batches() const override { return true; }
  std::vector<float> EncodeMel(std::span<const float>) override { return {}; }
  std::vector<float> EncodeSamples(std::span<const float>) override { return {}; }

  std::vector<size_t> batch_sizes;
  std::promise<void> has_begun;
  std::promise<void> may_end;
  bool fails = false;
};

ImagePatches Picture(float value) {
  ImagePatches patches;
  patches.values = {value};
  return patches;
}

class SharedTowersTest : public testing::Test {
 protected:
  std::future<std::vector<float>> Ask(float value) {
    return std::async(std::launch::async, [this, value] {
      const ImagePatches picture = Picture(value);
      return shared_.EncodeImage(picture);
    });
  }

  GatedTowers& gate_ = *new GatedTowers;  // owned by shared_
  SharedTowers shared_{std::unique_ptr<MediaTowers>(&gate_)};
};

TEST_F(SharedTowersTest, EveryPictureOfABatchGetsItsOwnRows) {
  auto first = Ask(1.0f);
  gate_.has_begun.get_future().wait();
  auto second = Ask(2.0f);
  auto third = Ask(3.0f);
  gate_.may_end.set_value();
  EXPECT_EQ(first.get(), std::vector<float>{1.0f});
  EXPECT_EQ(second.get(), std::vector<float>{2.0f});
  EXPECT_EQ(third.get(), std::vector<float>{3.0f});
}

TEST_F(SharedTowersTest, WhatADeviceThrowsReachesAllWhoAskedAndTheNextBatchRuns) {
  auto first = Ask(1.0f);
  gate_.has_begun.get_future().wait();
  auto second = Ask(2.0f);
  auto third = Ask(3.0f);
  gate_.fails = true;
  gate_.may_end.set_value();
  EXPECT_THROW(first.get(), std::runtime_error);
  EXPECT_THROW(second.get(), std::runtime_error);
  EXPECT_THROW(third.get(), std::runtime_error);
  gate_.fails = false;
  EXPECT_EQ(Ask(4.0f).get(), std::vector<float>{4.0f});
}

}  // namespace
}  // namespace lapidary
