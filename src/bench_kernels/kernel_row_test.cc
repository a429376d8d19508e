#include "bench_kernels/kernel_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

using testing::HasSubstr;

TEST(KernelRowTest, TheFloorIsMemoryForFewRowsAndArithmeticForMany) {
  const KernelRow few = MakeProductRow("m down", "", 1, 4096, 8192, 40.0);
  const double weight_us = 2.0 * 4096 * 8192 / 4.2e6;
  EXPECT_NEAR(few.floor_us(), weight_us, 0.01 * weight_us);
  EXPECT_NEAR(few.floor_share(), weight_us / 40.0, 0.01);
  const KernelRow many = MakeProductRow("m down", "", 2048, 4096, 8192, 300.0);
  EXPECT_DOUBLE_EQ(many.floor_us(), 2.0 * 2048 * 4096 * 8192 / 790e6);
  EXPECT_NEAR(many.tflops(), 2.0 * 2048 * 4096 * 8192 / 300e6, 1e-6);
}

TEST(KernelRowTest, JsonHasTheBaselineOnlyWhereThereIsOne) {
  std::vector<KernelRow> rows = {MakeProductRow("m qkv", "", 8, 64, 128, 2.0),
                                 MakeProductRow("m qkv", "invariant", 8, 64, 128, 4.0)};
  rows[0].baseline = "cuBLASLt";
  rows[0].baseline_us = 3.0;
  const auto json = ToJson(rows);
  EXPECT_EQ(json[0]["ratio"], 1.5);
  EXPECT_EQ(json[0]["baseline"], "cuBLASLt");
  EXPECT_FALSE(json[1].contains("ratio"));
  EXPECT_EQ(json[1]["variant"], "invariant");
  EXPECT_NE(rows[0].label(), rows[1].label());
  for (const char* key : {"name", "shape", "rows", "us", "tflops", "gbps", "floor_share"}) {
    EXPECT_TRUE(json[1].contains(key)) << key;
  }
}

TEST(KernelRowTest, TheTableHasALinePerRow) {
  KernelRow row = MakeProductRow("e4b gate_up", "", 512, 2560, 20480, 80.0);
  row.baseline = "cuBLASLt";
  row.baseline_us = 100.0;
  const std::string text = FormatKernelRows(std::vector<KernelRow>{row});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, HasSubstr("e4b gate_up  2560x20480    512     80.00"));
  EXPECT_THAT(text, HasSubstr("1.25 cuBLASLt"));
}

}  // namespace
}  // namespace lapidary
