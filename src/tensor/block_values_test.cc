#include "tensor/block_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/block_formats.h"

namespace lapidary {
namespace {

// Any bytes are a block: scales that are no numbers among them.
TEST(BlockValues, AreThoseOfDequantiseInEveryType) {
  constexpr int kCols = 1024;
  constexpr int kRows = 50;
  for (const DType type :
       {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K,
        DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS}) {
    SCOPED_TRACE(DTypeName(type));
    std::mt19937_64 random(static_cast<int>(type));
    std::vector<uint8_t> row(DTypeBytes(type, kCols));
    std::vector<float> expected(kCols);
    for (int count = 0; count < kRows; ++count) {
      for (uint8_t& byte : row) byte = static_cast<uint8_t>(random());
      Dequantise(type, row.data(), kCols, expected.data());
      for (int at = 0; at < kCols; at += 8) {
        float values[8];
        LoadBlockValues8(type, row.data(), at, values);
        for (int idx = 0; idx < 8; ++idx) {
          if (std::isnan(expected[at + idx])) {
            EXPECT_TRUE(std::isnan(values[idx])) << at + idx;
          } else {
            ASSERT_EQ(std::memcmp(&values[idx], &expected[at + idx], sizeof(float)), 0)
                << at + idx << ": " << values[idx] << " for " << expected[at + idx];
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lapidary
