// FP8 and NVFP4 in the CPU operations, against the plain code of src/tensor.
#include "ops/cpu/linear_codes.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ops/cpu/dequantise.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/op_testing.h"
#include "tensor/decode.h"
#include "tensor/random_matrix.h"

namespace lapidary::cpu {
namespace {

std::vector<WeightFormat> FloatCodes() {
  std::vector<WeightFormat> formats;
  for (const WeightFormat& format : StoredFormats()) {
    if (format.is_float_codes()) formats.push_back(format);
  }
  // As experts have them, several tensors in one.
  WeightFormat stacked = formats.back();
  stacked.tensor_rows = 22;
  formats.push_back(stacked);
  formats.push_back(RowMajorFormat(CodeType::kE4M3, {22, 0}, ScaleType::kF32));
  formats.push_back(RowMajorFormat(CodeType::kE4M3, {64, 128}, ScaleType::kBF16));
  return formats;
}

// Of every code, among them those that are no numbers, and every fraction of the smallest.
struct AllCodes {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(2 * 256);
  float scale = 0.37f;
  MatrixRef matrix;

  AllCodes() {
    for (size_t idx = 0; idx < bytes.size(); ++idx) bytes[idx] = static_cast<uint8_t>(idx);
    matrix = {.data = bytes.data(),
              .format = RowMajorFormat(CodeType::kE4M3, {0, 0}, ScaleType::kF32),
              .rows = 2,
              .cols = 256,
              .scales = &scale};
  }
};

TEST(DequantiseRows, AreTheExactValuesOfFp8AndNvfp4) {
  ForEachTarget([] {
    for (const WeightFormat& format : FloatCodes()) {
      // Whole pieces, partial squares, and columns that are no pieces.
      for (const int cols : {16, 208, 704, 264}) {
        const bool has_groups = format.group.cols == 16;
        if (has_groups && cols % 16 != 0) continue;
        const RandomMatrix random(format, 150, cols, 5);
        const std::vector<float> expected = DecodeMatrix(random.matrix());
        Guarded out(int64_t{120} * cols, 1);
        DequantiseRows(random.matrix(), 19, 120, out.data());
        out.CheckGuards();
        ASSERT_EQ(std::memcmp(out.data(), expected.data() + 19 * cols, out.size() * sizeof(float)),
                  0)
            << FormatName(format) << " of " << cols << " columns";
      }
    }
    const AllCodes all;
    const std::vector<float> expected = DecodeMatrix(all.matrix);
    std::vector<float> out(expected.size());
    DequantiseRows(all.matrix, 0, 2, out.data());
    for (size_t idx = 0; idx < out.size(); ++idx) {
      ASSERT_TRUE(out[idx] == expected[idx] || (std::isnan(out[idx]) && std::isnan(expected[idx])))
          << idx;
    }
  });
}

TEST(GatherRow, ReadsFp8AndNvfp4) {
  for (const WeightFormat& format : FloatCodes()) {
    const RandomMatrix random(format, 130, 208, 6);
    const std::vector<float> expected = DecodeMatrix(random.matrix());
    std::vector<float> row(208);
    GatherRow(random.matrix(), 129, 3.0f, row.data());
    for (int idx = 0; idx < 208; ++idx) {
      ASSERT_EQ(row[idx], 3.0f * expected[129 * 208 + idx]) << FormatName(format);
    }
  }
}

// Rows are computed from the very floats that codes stand for, in the chain of a float matrix.
TEST(Linear, OfFp8AndNvfp4IsBitwiseThatOfTheirFloats) {
  ForEachTarget([] {
    Random random(53);
    ThreadPool threads(2);
    for (const WeightFormat& format : FloatCodes()) {
      for (const int out : {1, 7, 150}) {
        for (const int cols : {704, 1536, 264}) {
          if (format.group.cols == 16 && cols % 16 != 0) continue;
          const RandomMatrix codes(format, out, cols, 8);
          const std::vector<float> values = DecodeMatrix(codes.matrix());
          const MatrixRef floats{
              .data = values.data(), .format = FormatOf(DType::kF32), .rows = out, .cols = cols};
          for (const int rows : {1, 2, 3, 4, 5, 40}) {
            const std::vector<float> x = random.Vector(int64_t{rows} * cols);
            Guarded y(int64_t{rows} * out, 1);
            std::vector<float> expected(int64_t{rows} * out);
            Linear(x.data(), rows, codes.matrix(), y.data(), out, threads);
            Linear(x.data(), rows, floats, expected.data(), out, threads);
            y.CheckGuards();
            ASSERT_EQ(std::memcmp(y.data(), expected.data(), expected.size() * sizeof(float)), 0)
                << FormatName(format) << " " << out << "x" << cols << ", " << rows << " rows";
            LinearColumns(x.data(), rows, codes.matrix(), out / 2, out, y.data(), out);
            ASSERT_EQ(std::memcmp(y.data(), expected.data(), expected.size() * sizeof(float)), 0);
          }
        }
      }
    }
  });
}

// A stack of experts, of which each is a matrix of its own.
TEST(Linear, OfOneExpertOfAStackIsThatOfItsRows) {
  Random random(54);
  ThreadPool threads(1);
  WeightFormat format = RowMajorFormat(CodeType::kE2M1, {1, 16}, ScaleType::kE4M3TimesTensors);
  format.tensor_rows = 11;
  const RandomMatrix stack(format, 44, 64, 9);
  const std::vector<float> x = random.Vector(64);
  std::vector<float> all(44), part(22);
  Linear(x.data(), 1, stack.matrix(), all.data(), 44, threads);
  LinearColumns(x.data(), 1, stack.matrix().Rows(22, 22), 0, 22, part.data(), 22);
  for (int idx = 0; idx < 22; ++idx) EXPECT_EQ(part[idx], all[22 + idx]) << idx;
}

TEST(Linear, OfACodeThatIsNoNumberIsNone) {
  ForEachTarget([] {
    ThreadPool threads(1);
    AllCodes all;
    for (const int rows : {1, 3, 6}) {
      const std::vector<float> x(rows * 256, 0.0f);
      std::vector<float> y(rows * 2);
      Linear(x.data(), rows, all.matrix, y.data(), 2, threads);
      for (const float value : y) EXPECT_TRUE(std::isnan(value));
    }
    for (uint8_t& byte : all.bytes) {
      if ((byte & 0x7f) == 0x7f) byte = 0;
    }
    std::vector<float> x(256), y(2);
    x[1] = 1.0f;
    Linear(x.data(), 1, all.matrix, y.data(), 2, threads);
    EXPECT_EQ(y[0], 0x1p-9f * 0.37f);
  });
}

}  // namespace
}  // namespace lapidary::cpu
