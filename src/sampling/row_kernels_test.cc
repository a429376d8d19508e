// The vector passes against the scalar ones, bit for bit, over every remainder and alignment.
#include "sampling/row_kernels.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <limits>
#include <random>
#include <vector>

#include "sampling/row_kernels_portable.h"
#include "sampling/select.h"

namespace lapidary {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomRow(size_t size, uint32_t seed, float deviation = 4.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> noise(0.0f, deviation);
  std::vector<float> row(size);
  for (float& x : row) x = random() % 50 == 0 ? -kInfinity : noise(random);
  row[random() % size] = 1.0f;  // At least one finite logit.
  return row;
}

// Each test runs once per instruction set that this machine has.
class RowKernels : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { Choose(GetParam()); }
  void TearDown() override { Choose(0); }

 private:
  static void Choose(int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, RowKernels,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const testing::TestParamInfo<int64_t>& target) {
                           return hwy::TargetName(target.param);
                         });

TEST_P(RowKernels, EqualTheScalarCodeForEverySizeAndMisalignment) {
  for (size_t size = 1; size <= 300; ++size) {
    for (const size_t misalign : {0, 1, 3}) {
      const std::vector<float> storage = RandomRow(size + misalign, static_cast<uint32_t>(size));
      std::vector<float> copy = storage;
      copy[misalign] = 0.5f;
      const std::span<const float> row = std::span<const float>(copy).subspan(misalign);
      std::vector<float> block_max(NumRowBlocks(size));
      std::vector<float> expected_max(block_max.size());
      const RowScan scan = ScanRow(row, block_max);
      const RowScan expected = portable::ScanRow(row, expected_max);
      ASSERT_EQ(scan.max, expected.max);
      ASSERT_TRUE(scan.valid && expected.valid);
      ASSERT_EQ(block_max, expected_max);
      for (const float inv_temperature : {0.1f, 1.0f, 7.0f}) {
        std::vector<float> weights(size);
        ASSERT_EQ(RowMass(row, scan.max, inv_temperature, weights.data()),
                  portable::RowMass(row, scan.max, inv_temperature));
        for (size_t id = 0; id < size; ++id) {
          const float weight = TokenWeight(row[id], scan.max, inv_temperature);
          ASSERT_TRUE(weights[id] == weight || (weights[id] == 0 && TokenMass(weight) == 0));
        }
        const RaceSettings race{
            .max = scan.max,
            .inv_temperature = inv_temperature,
            .min_weight = size % 2 == 0 ? 0.0f : 0.01f,
            .cutoff = size % 3 == 0 ? Cutoff{row[size / 2], int(size / 2)} : Cutoff(),
            .seed = 99,
            .position = size};
        ASSERT_EQ(RaceRow(row, race), portable::RaceRow(row, race)) << size;
      }
    }
  }
}

TEST_P(RowKernels, EqualTheScalarCodeOnAWholeVocabulary) {
  const std::vector<float> row = RandomRow(262144, 1);
  std::vector<float> block_max(NumRowBlocks(262144));
  const float max = ScanRow(row, block_max).max;
  EXPECT_EQ(RowMass(row, max, 1.0f), portable::RowMass(row, max, 1.0f));
  EXPECT_EQ(RowMass(row, max, 1e-6f), portable::RowMass(row, max, 1e-6f));  // The largest sum.
  for (uint64_t position = 0; position < 8; ++position) {
    const RaceSettings race{
        .max = max, .inv_temperature = 0.3f, .seed = ~uint64_t{0}, .position = position << 31};
    ASSERT_EQ(RaceRow(row, race), portable::RaceRow(row, race));
  }
}

TEST_P(RowKernels, ScanRefusesNanAnywhere) {
  for (size_t size : {1, 63, 64, 65, 130}) {
    std::vector<float> block_max(NumRowBlocks(size));
    for (size_t id = 0; id < size; ++id) {
      std::vector<float> row(size, 1.0f);
      row[id] = std::numeric_limits<float>::quiet_NaN();
      ASSERT_FALSE(ScanRow(row, block_max).valid) << size << " " << id;
      row[id] = kInfinity;
      ASSERT_FALSE(ScanRow(row, block_max).valid);
      row[id] = -kInfinity;
      ASSERT_EQ(ScanRow(row, block_max).valid, size > 1);
    }
  }
}

TEST(SelectCutoff, FindsTheNthBestInTheTotalOrder) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const size_t size = 1 + random() % 400;
    std::vector<float> values(size);
    for (float& x : values) {
      const int pick = static_cast<int>(random() % 9);
      x = pick == 0 ? -0.0f : pick == 1 ? -kInfinity : static_cast<float>(pick - 4) * 0.75f;
    }
    std::vector<int32_t> order(size);
    for (size_t id = 0; id < size; ++id) order[id] = static_cast<int32_t>(id);
    std::vector<int32_t> ids = order;
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return values[a] > values[b]; });
    const uint64_t target = 1 + random() % size;
    const Cutoff cutoff =
        SelectCutoff(values.data(), ids, target, [](int32_t) { return uint64_t{1}; });
    ASSERT_EQ(cutoff.id, order[target - 1]);
  }
}

}  // namespace
}  // namespace lapidary
