// That tests/resident_mistakes.h can tell right from wrong in bf16, with the rounded reference in
// the kernel's place: no GPU is needed.
#include "tests/resident_mistakes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lapidary {
namespace {

using Rounding = NaiveDecoder::Rounding;

class ResidentMistakesTest : public testing::TestWithParam<std::string> {
 protected:
  const MistakeFinder finder_{MistakeModel{.preset = GetParam()}};
};

TEST_P(ResidentMistakesTest, RoundingGoesTheWayOfNoMistake) {
  const Logits right = finder_.Run({}, Rounding::kBf16);
  EXPECT_GT(finder_.Distance(right), 0.001) << "bf16 has no more than three digits";
  EXPECT_LT(finder_.Distance(right), 0.05);
  const std::vector<double> shares = finder_.Shares(right);
  for (size_t idx = 0; idx < shares.size(); ++idx) {
    EXPECT_LT(std::abs(shares[idx]), MistakeFinder::kFound / 3) << finder_.mistakes()[idx].Name();
  }
}

TEST_P(ResidentMistakesTest, EveryMistakeIsFoundBehindTheRounding) {
  for (size_t idx = 0; idx < finder_.mistakes().size(); ++idx) {
    const PossibleMistake& mistake = finder_.mistakes()[idx];
    const std::vector<double> shares = finder_.Shares(finder_.Run(mistake, Rounding::kBf16));
    EXPECT_GT(shares[idx], 1.5 * MistakeFinder::kFound) << mistake.Name();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ResidentMistakesTest,
                         testing::Values("tiny-e", "tiny-dense", "tiny-moe"),
                         [](const auto& preset) { return MistakeModel{preset.param}.Name(); });

}  // namespace
}  // namespace lapidary
