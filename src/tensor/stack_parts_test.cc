#include "tensor/stack_parts.h"

#include <gtest/gtest.h>

#include "tensor/decode.h"
#include "tensor/random_matrix.h"

namespace lapidary {
namespace {

std::vector<MatrixRef> RefsOf(const std::vector<RandomMatrix>& matrices) {
  std::vector<MatrixRef> parts;
  for (const RandomMatrix& matrix : matrices) parts.push_back(matrix.matrix());
  return parts;
}

TEST(StackParts, KeepsTheCodesAndTheValueOfEveryWeight) {
  // Of 192 rows the second square is a half, as those of experts of 704.
  constexpr int kRows = 192, kCols = 208;
  for (const WeightFormat& format : StoredFormats()) {
    if (!FitsColumns(format, kCols)) continue;
    std::vector<RandomMatrix> matrices;
    for (uint32_t seed = 0; seed < 4; ++seed) matrices.emplace_back(format, kRows, kCols, seed);
    const std::vector<MatrixRef> parts = RefsOf(matrices);
    const auto stacked = StackedFormat(parts);
    ASSERT_EQ(stacked.has_value(), format.is_float_codes()) << FormatName(format);
    if (!stacked) continue;
    constexpr int kAllRows = 4 * kRows;
    const PlaneBytes bytes = BytesOf(*stacked, kAllRows, kCols);
    EXPECT_EQ(bytes.data, 4 * parts[0].bytes().data);
    std::vector<std::byte> memory(bytes.total());
    std::vector<float> expected;
    for (int idx = 0; idx < 4; ++idx) {
      StackPart(parts[idx], 0, 50, *stacked, idx * kRows, kAllRows, memory.data());
      StackPart(parts[idx], 50, kRows, *stacked, idx * kRows, kAllRows, memory.data());
      const std::vector<float> values = DecodeMatrix(parts[idx]);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    const MatrixRef whole = MatrixAt(memory.data(), *stacked, kAllRows, kCols);
    EXPECT_EQ(DecodeMatrix(whole), expected) << FormatName(format);
    // As the experts' products take it apart.
    const std::vector<float> half = DecodeMatrix(whole.Rows(2 * kRows, 2 * kRows));
    EXPECT_EQ(half, std::vector<float>(expected.begin() + 2 * kRows * kCols, expected.end()));
  }
}

TEST(StackParts, OnePartStaysAsItIsAndDifferentOnesHaveNoStack) {
  const WeightFormat squares = RowMajorFormat(CodeType::kE4M3, {128, 128}, ScaleType::kBF16);
  const WeightFormat rows = RowMajorFormat(CodeType::kE4M3, {1, 0}, ScaleType::kBF16);
  std::vector<RandomMatrix> matrices;
  matrices.emplace_back(squares, 32, 64, 1);
  EXPECT_EQ(StackedFormat(RefsOf(matrices)), squares);
  matrices.emplace_back(rows, 32, 64, 2);
  EXPECT_EQ(StackedFormat(RefsOf(matrices)), std::nullopt);
}

}  // namespace
}  // namespace lapidary
