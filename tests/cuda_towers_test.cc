// The towers on the GPU against those on the CPU, of every kind, on tiny random models.
#include "towers/cuda/cuda_towers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/cuda/test_buffer.h"
#include "tests/test_models.h"
#include "towers/cpu_towers.h"
#include "towers/tower_specs.h"

namespace lapidary {
namespace {

// Of bf16 products through some layers, relative to the row; measured at half of it.
constexpr double kTolerance = 0.03;

class CudaTowersTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    LAPIDARY_SKIP_WITHOUT_GPU();
    const auto path = MakeTestModel(GetParam(), {.seed = 4}, directory_);
    plan_ = MakeTowersPlan(TestConfig(GetParam()), GetParam()).value();
    if (plan_.has_vision()) vision_ = TowerTensors::Open(path, VisionTensors(plan_)).value();
    if (plan_.has_audio()) audio_ = TowerTensors::Open(path, AudioTensors(plan_)).value();
    const TowerTensors* const vision = vision_ ? &*vision_ : nullptr;
    const TowerTensors* const audio = audio_ ? &*audio_ : nullptr;
    on_cpu_ = std::make_unique<cpu::CpuTowers>(plan_, vision, audio, 2);
    auto on_gpu = cuda::MakeCudaTowers(plan_, vision, audio, /*gpu_ordinal=*/0);
    ASSERT_TRUE(on_gpu.ok()) << on_gpu.error().message;
    on_gpu_ = std::move(on_gpu).value();
  }

  // So many cells; pixels that change from patch to patch.
  ImagePatches Picture(int height, int width, int seed) const {
    const int scale = plan_.vision_tower ? plan_.grid.kernel : 1;
    ImagePatches image;
    image.grid_height = height * scale;
    image.grid_width = width * scale;
    image.patch = plan_.vision_tower ? plan_.grid.patch : plan_.grid.cell();
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> levels(0, 255);
    image.values.resize(int64_t{image.num_patches()} * image.patch_values());
    for (float& value : image.values) value = static_cast<float>(levels(random)) / 255.0f;
    return image;
  }
  static std::vector<float> Noise(int64_t count, int seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
  }

  // The worst row's |a - b| / |b|.
  double WorstRow(const std::vector<float>& actual, const std::vector<float>& expected) const {
    EXPECT_EQ(actual.size(), expected.size());
    if (actual.size() != expected.size()) return 1e9;
    double worst = 0.0;
    for (size_t at = 0; at < expected.size(); at += plan_.text_hidden) {
      double error = 0.0;
      double norm = 0.0;
      for (int idx = 0; idx < plan_.text_hidden; ++idx) {
        error += std::pow(double{actual[at + idx]} - expected[at + idx], 2);
        norm += std::pow(double{expected[at + idx]}, 2);
      }
      const double relative = std::sqrt(error / norm);
      worst = std::isfinite(relative) ? std::max(worst, relative) : 1e9;
    }
    return worst;
  }

  const TemporaryDirectory directory_;
  TowersPlan plan_;
  std::optional<TowerTensors> vision_;
  std::optional<TowerTensors> audio_;
  std::unique_ptr<MediaTowers> on_cpu_;
  std::unique_ptr<MediaTowers> on_gpu_;
};

TEST_P(CudaTowersTest, PicturesOfAnySizeAreTheCpusAloneAndTogether) {
  if (!plan_.has_vision()) GTEST_SKIP() << "the model sees nothing";
  const std::vector<ImagePatches> pictures = {Picture(1, 1, 1), Picture(2, 7, 2), Picture(5, 3, 3),
                                              Picture(9, 8, 4), Picture(1, 21, 5)};
  std::vector<const ImagePatches*> all;
  for (const ImagePatches& picture : pictures) all.push_back(&picture);
  const auto expected = on_cpu_->EncodeImages(all);
  const auto together = on_gpu_->EncodeImages(all);
  ASSERT_EQ(together.size(), all.size());
  for (size_t idx = 0; idx < all.size(); ++idx) {
    const double error = WorstRow(together[idx], expected[idx]);
    std::printf("%s, picture %zu: worst row %.5f\n", GetParam().c_str(), idx, error);
    EXPECT_LT(error, kTolerance) << "picture " << idx;
    const auto alone = on_gpu_->EncodeImages(std::span(all).subspan(idx, 1));
    EXPECT_LT(WorstRow(alone[0], expected[idx]), kTolerance) << "picture " << idx << " alone";
  }
  // Another picture would show.
  const ImagePatches other = Picture(9, 8, 9);
  const ImagePatches* const one[] = {&other};
  EXPECT_GT(WorstRow(on_cpu_->EncodeImages(one)[0], expected[3]), 2 * kTolerance);
}

TEST_P(CudaTowersTest, BatchesBeyondWhatFitsAreCutBetweenPictures) {
  if (!plan_.has_vision()) GTEST_SKIP() << "the model sees nothing";
  const int side = plan_.vision_tower ? 20 : 16;  // 400 and 256 cells of 1,120
  const ImagePatches picture = Picture(side, side, 1);
  const std::vector<const ImagePatches*> images(5, &picture);
  const auto rows = on_gpu_->EncodeImages(images);
  ASSERT_EQ(rows.size(), images.size());
  for (const std::vector<float>& own : rows) EXPECT_LT(WorstRow(own, rows[0]), 1e-2);
}

TEST_P(CudaTowersTest, SoundsOfAnyLengthAreTheCpus) {
  if (!plan_.has_audio()) GTEST_SKIP() << "the model hears nothing";
  for (const int length : {1, 3, 9, 99, 250, 2999}) {
    std::vector<float> expected;
    std::vector<float> actual;
    if (plan_.audio_tower) {
      const std::vector<float> mel = Noise(length * 128, length);
      expected = on_cpu_->EncodeMel(mel);
      actual = on_gpu_->EncodeMel(mel);
    } else {
      const std::vector<float> samples = Noise(length * 333, length);  // 999,000 at most
      expected = on_cpu_->EncodeSamples(samples);
      actual = on_gpu_->EncodeSamples(samples);
    }
    const double error = WorstRow(actual, expected);
    std::printf("%s, %d: worst row %.5f\n", GetParam().c_str(), length, error);
    EXPECT_LT(error, kTolerance) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaTowersTest,
                         testing::Values("media-e", "media-dense", "media-unified"), ModelTestName);

TEST(CudaTowersSupportTest, EveryPublishedShapeHasKernels) {
  TowersPlan plan;
  plan.text_hidden = 2560;
  plan.vision_tower = VisionTowerPlan{.hidden = 768, .num_heads = 12, .head_dim = 64};
  plan.audio_tower = AudioTowerPlan{
      .hidden = 1024, .num_heads = 8, .channels = {128, 32}, .num_keys = 12, .output_dim = 1536};
  EXPECT_TRUE(cuda::CudaTowersSupport(plan).ok());
  plan.vision_tower = VisionTowerPlan{.hidden = 1152, .num_heads = 16, .head_dim = 72};
  EXPECT_TRUE(cuda::CudaTowersSupport(plan).ok());
  plan.cell_embedder = CellEmbedderPlan{.hidden = 3840};
  plan.wave_embedder = WaveEmbedderPlan{.num_samples = 640};
  EXPECT_TRUE(cuda::CudaTowersSupport(plan).ok());
  plan.vision_tower->head_dim = 100;
  EXPECT_NE(cuda::CudaTowersSupport(plan).error().message.find("100"), std::string::npos);
}

}  // namespace
}  // namespace lapidary
