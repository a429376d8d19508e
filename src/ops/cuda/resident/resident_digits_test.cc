// The arithmetic of resident_digits.h without a GPU: bytes of codes times bytes of digits, as the
// matrix instructions pair them, against the weights of the tiles and the input.
#include "ops/cuda/resident/resident_digits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/repack.h"
#include "tensor/tile_row.h"
#include "tensor/weight_tiles.h"

namespace lapidary::cuda {
namespace {

float Largest(const std::vector<float>& values) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

int Byte(uint32_t word, int idx) { return static_cast<int8_t>(word >> (8 * idx)); }

// The value that four bytes stand for.
double ValueOf(const Digits& digits, const DigitScale& scale, int idx) {
  return double{scale.scale} * (256 * Byte(digits.high, idx) + Byte(digits.low, idx));
}

std::vector<float> RandomValues(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kDigitGroup);
  for (float& value : values) value = normal(random) * std::exp2(3.0f * normal(random));
  return values;
}

TEST(ResidentDigitsTest, ValuesAreRoundedToAFixedPartOfTheLargest) {
  std::vector<std::vector<float>> groups;
  for (int seed = 0; seed < 20; ++seed) groups.push_back(RandomValues(seed));
  // The largest integers, of either sign; a single value; the ends of what f32 holds.
  groups.push_back({std::nextafter(2.0f, 0.0f), std::nextafter(-2.0f, 0.0f), 1.0f, -1.0f});
  groups.push_back({0.0f, -0.75f, 0.0f, 0.0f});
  groups.push_back({3e38f, -1e38f, 0.0f, 1.0f});
  groups.push_back({0.0f, 0.0f, 0.0f, 0.0f});
  for (const std::vector<float>& values : groups) {
    const float largest = Largest(values);
    const DigitScale scale(BitsOf(largest), TileType::kS8F16);
    for (size_t at = 0; at < values.size(); at += 4) {
      const Digits digits(values[at], values[at + 1], values[at + 2], values[at + 3],
                          scale.to_integer);
      for (int idx = 0; idx < 4; ++idx) {
        EXPECT_LE(std::abs(Byte(digits.high, idx)), 64);
        EXPECT_LE(std::abs(ValueOf(digits, scale, idx) - values[at + idx]), 0x1p-14 * largest);
      }
    }
  }
}

TEST(ResidentDigitsTest, WhatBf16HoldsOfValuesNearTheLargestIsExact) {
  for (const float value : {1.0f, 1.9921875f, -1.5078125f, 0.50390625f, -0.015625f}) {
    const DigitScale scale(BitsOf(1.9921875f), TileType::kU4F16);
    const Digits digits(0.0f, value, 0.0f, 0.0f, scale.to_integer);
    EXPECT_EQ(16 * ValueOf(digits, scale, 1), value);
  }
}

TEST(ResidentDigitsTest, TinyGroupsAreZeroAndNothingIsHiddenThatIsNoNumber) {
  const DigitScale tiny(BitsOf(1e-37f), TileType::kU4F16);
  const Digits digits(1e-37f, -1e-37f, 0.0f, 1e-38f, tiny.to_integer);
  EXPECT_TRUE(std::isfinite(tiny.scale) && std::isfinite(tiny.to_integer));
  for (int idx = 0; idx < 4; ++idx) EXPECT_LT(std::abs(ValueOf(digits, tiny, idx)), 1e-32);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(DigitScale(BitsOf(infinity), TileType::kU4F16).scale));
  EXPECT_TRUE(std::isnan(DigitScale(0x7fffffffu, TileType::kS8Bf16).scale));
}

// A row of 64 columns of a tile, lane by lane of those that have it.
TEST(ResidentDigitsTest, BytesOfCodesMeetTheDigitsOfTheirColumns) {
  for (const DType stored : {DType::kQ4_0, DType::kQ8_0}) {
    const WeightFormat format = *TileFormatFor(FormatOf(stored));
    const TileType type = stored == DType::kQ4_0 ? TileType::kU4F16 : TileType::kS8F16;
    std::mt19937_64 random(5);
    TileRow row;
    row.scale = {0.5f, 2.0f};
    for (int col = 0; col < kTileCols; ++col)
      row.codes.push_back(random() & (Is4Bit(type) ? 15 : 255));
    MatrixRef tiled{.data = nullptr, .format = format, .rows = kTileRows, .cols = kTileCols};
    std::vector<std::byte> bytes(tiled.bytes().total());
    constexpr int kRow = 3;
    StoreTileRow(row, format, kRow, kTileCols, bytes.data());
    tiled.data = bytes.data();
    std::vector<float> weights(kTileCols);
    UnpackTileRow(tiled, kRow, weights.data());

    const std::vector<float> x = RandomValues(7);
    const DigitScale scale(BitsOf(Largest(x)), type);
    const DigitOrder order(type);
    const int lane_bytes = Is4Bit(type) ? 8 : 16;
    double expected = 0.0;
    double found = 0.0;
    for (int chunk = 0; chunk < 2; ++chunk) {
      for (int quarter = 0; quarter < 4; ++quarter) {
        const float* of_lane = x.data() + chunk * 32 + quarter * 8;
        const Digits front(of_lane[0], of_lane[1], of_lane[2], of_lane[3], scale.to_integer);
        const Digits back(of_lane[4], of_lane[5], of_lane[6], of_lane[7], scale.to_integer);
        uint32_t words[4];
        std::memcpy(words, bytes.data() + (kRow * 4 + quarter) * lane_bytes, lane_bytes);
        const CodesAsBytes codes = Is4Bit(type)
                                       ? CodesAsBytes(words[chunk])
                                       : CodesAsBytes(words[2 * chunk], words[2 * chunk + 1]);
        int sum = 0;
        for (const auto& [bytes_of_codes, picks] :
             {std::pair{codes.first, order.first}, {codes.second, order.second}}) {
          const uint32_t high = PickBytes(front.high, back.high, picks);
          const uint32_t low = PickBytes(front.low, back.low, picks);
          for (int idx = 0; idx < 4; ++idx) {
            sum += Byte(bytes_of_codes, idx) * (256 * Byte(high, idx) + Byte(low, idx));
          }
        }
        found += double{row.scale[chunk]} * scale.scale * sum;
        for (int idx = 0; idx < 8; ++idx) {
          expected += double{weights[chunk * 32 + quarter * 8 + idx]} * of_lane[idx];
        }
      }
    }
    double size = 0.0;
    for (const float weight : weights) size += std::abs(weight);
    EXPECT_NEAR(found, expected, 0x1p-14 * Largest(x) * size) << DTypeName(stored);
    EXPECT_GT(std::abs(expected), 0x1p-8 * Largest(x) * size) << "a sum that says something";
  }
}

TEST(ResidentDigitsTest, AnyWidthHasRoomForWholeGroupsAndTheirScales) {
  for (const int values : {64, 128, 704, 1536, 2112, 21504}) {
    const int groups = (values + kDigitGroup - 1) / kDigitGroup;
    EXPECT_EQ(DigitScalesPlace(values), groups * 2 * kDigitGroup);
    EXPECT_EQ(DigitBytes(values), groups * (2 * kDigitGroup + 4 * 4));
  }
}

}  // namespace
}  // namespace lapidary::cuda
