// Soft tokens of every kind of tower against transformers' (tools/make_media_goldens.py).
#include <gtest/gtest.h>

#include <cmath>

#include "base/read_file.h"
#include "media/decode_audio.h"
#include "media/decode_image.h"
#include "tests/golden_file.h"
#include "tests/test_models.h"
#include "towers/media_encoder.h"

namespace lapidary {
namespace {

constexpr double kTolerance = 1e-4;  // of the largest value
constexpr int kBudget = 70;

std::string TestFile(const std::string& name) {
  return ReadFile(std::string(LAPIDARY_SOURCE_DIR) + "/tests/data/media/" + name, 1 << 20).value();
}

class TowerGoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(TowerGoldenTest, SoftTokensAreTheReferences) {
  const Golden golden = OpenGolden(GetParam());
  const TemporaryDirectory directory;
  const auto path = MakeTestModel(GetParam(), OptionsOf(golden), directory);
  const TowersPlan plan = MakeTowersPlan(TestConfig(GetParam()), GetParam()).value();
  auto encoder = MediaEncoder::Load(plan, path, plan.has_vision(), plan.has_audio(), 2);
  ASSERT_TRUE(encoder.ok()) << encoder.error().message;
  int num_files = 0;
  for (const SafetensorsEntry& entry : golden.header.entries) {
    const std::string prefix = "soft.";
    if (!entry.name.starts_with(prefix)) continue;
    const std::string name = entry.name.substr(prefix.size());
    const auto medium = name.ends_with(".wav")
                            ? (*encoder)->EncodeAudio(DecodeAudio(TestFile(name)).value())
                            : (*encoder)->EncodeImage(DecodeImage(TestFile(name)).value(), kBudget);
    ASSERT_TRUE(medium.ok()) << medium.error().message;
    EXPECT_EQ((std::vector<int64_t>{medium->num_tokens, plan.text_hidden}), entry.shape);
    ASSERT_EQ(medium->rows->size(), size_t{1} * entry.shape[0] * entry.shape[1]);
    const float* expected = golden.Tensor(entry.name).As<float>();
    double largest = 0.0;
    double worst = 0.0;
    for (size_t idx = 0; idx < medium->rows->size(); ++idx) {
      ASSERT_TRUE(std::isfinite((*medium->rows)[idx])) << name << " value " << idx;
      largest = std::max(largest, std::abs(double{expected[idx]}));
      worst = std::max(worst, std::abs(double{(*medium->rows)[idx]} - expected[idx]));
    }
    EXPECT_LE(worst / largest, kTolerance) << name;
    RecordProperty(name, std::to_string(worst / largest));
    ++num_files;
  }
  EXPECT_EQ(num_files, plan.has_audio() ? 4 : 2);
}

INSTANTIATE_TEST_SUITE_P(Models, TowerGoldenTest,
                         testing::Values("media-e", "media-dense", "media-moe", "media-unified"),
                         ModelTestName);

}  // namespace
}  // namespace lapidary
