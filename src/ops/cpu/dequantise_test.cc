// Block formats in the CPU operations, against the plain code of src/tensor.
#include "ops/cpu/dequantise.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/random_blocks.h"

namespace lapidary::cpu {
namespace {

TEST(DequantiseRows, AreThePlainValues) {
  ForEachTarget([] {
    Random random(50);
    for (const DType dtype : kBlockTypes) {
      const RandomBlocks blocks(dtype, 5, 768, random);
      Guarded out(2 * 768, 1);
      DequantiseRows(blocks.matrix, 3, 2, out.data());
      out.CheckGuards();
      for (int idx = 0; idx < 2 * 768; ++idx) {
        ASSERT_EQ(out[idx], blocks.values[3 * 768 + idx]) << DTypeName(dtype) << " at " << idx;
      }
    }
  });
}

TEST(GatherRow, ReadsBlockFormats) {
  Random random(51);
  for (const DType dtype : kBlockTypes) {
    const RandomBlocks blocks(dtype, 4, 256, random);
    std::vector<float> row(256);
    GatherRow(blocks.matrix, 2, 3.0f, row.data());
    for (int idx = 0; idx < 256; ++idx) {
      ASSERT_EQ(row[idx], 3.0f * blocks.values[2 * 256 + idx]) << DTypeName(dtype);
    }
  }
}

// Rows are computed from the very floats the blocks stand for, in the chain of a float matrix.
TEST(Linear, OfBlockFormatsIsBitwiseThatOfTheirFloats) {
  ForEachTarget([] {
    Random random(52);
    ThreadPool threads(2);
    for (const DType dtype : kBlockTypes) {
      for (const int out : {1, 7, 70}) {
        for (const int cols : {256, 1536}) {
          const RandomBlocks blocks(dtype, out, cols, random);
          const MatrixRef floats{.data = blocks.values.data(),
                                 .format = FormatOf(DType::kF32),
                                 .rows = out,
                                 .cols = cols};
          for (const int rows : {1, 2, 3, 4, 5, 40}) {
            const std::vector<float> x = random.Vector(int64_t{rows} * cols);
            Guarded y(int64_t{rows} * out, 1);
            std::vector<float> expected(int64_t{rows} * out);
            Linear(x.data(), rows, blocks.matrix, y.data(), out, threads);
            Linear(x.data(), rows, floats, expected.data(), out, threads);
            y.CheckGuards();
            ASSERT_EQ(std::memcmp(y.data(), expected.data(), expected.size() * sizeof(float)), 0)
                << DTypeName(dtype) << " " << out << "x" << cols << ", " << rows << " rows";
            LinearColumns(x.data(), rows, blocks.matrix, out / 2, out, y.data(), out);
            ASSERT_EQ(std::memcmp(y.data(), expected.data(), expected.size() * sizeof(float)), 0);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace lapidary::cpu
