// Parts of matrices hold the weights that the whole has there, in every stored format.
#include "tensor/matrix_cut.h"

#include <gtest/gtest.h>

#include "tensor/decode.h"
#include "tensor/random_matrix.h"

namespace lapidary {
namespace {

constexpr int kRows = 384;
constexpr int kCols = 768;

// Ranges of whole units around the middle.
IndexRange Middle(int total, int unit, int first_third, int end_third) {
  return {total * first_third / 3 / unit * unit, total * end_third / 3 / unit * unit};
}

TEST(MatrixCopy, HasTheWeightsOfItsRangesInEveryStoredFormat) {
  ThreadPool threads(2);
  uint32_t seed = 1;
  for (const WeightFormat& format : StoredFormats()) {
    const RandomMatrix random(format, kRows, kCols, ++seed);
    const MatrixRef& whole = random.matrix();
    const std::vector<float> weights = DecodeMatrix(whole);
    const CutUnit unit = CutUnitOf(format);
    ASSERT_TRUE(kRows % (3 * unit.rows) == 0 && kCols % (3 * unit.cols) == 0) << FormatName(format);
    const IndexRange cols = Middle(kCols, unit.cols, 1, 3);
    // Two ranges of rows behind each other, as those of experts.
    const std::vector<IndexRange> rows = {Middle(kRows, unit.rows, 0, 1),
                                          Middle(kRows, unit.rows, 2, 3)};
    auto copy = MatrixCopy::Allocate(format, rows[0].count() + rows[1].count(), cols.count(),
                                     whole.tensor_scale);
    ASSERT_TRUE(copy.ok()) << copy.error().message;
    for (const IndexRange& range : rows) copy->Append(whole, range, cols, threads);
    const std::vector<float> got = DecodeMatrix(copy->matrix());
    size_t at = 0;
    for (const IndexRange& range : rows) {
      for (int row = range.begin; row < range.end; ++row) {
        for (int col = cols.begin; col < cols.end; ++col) {
          ASSERT_EQ(got[at++], weights[row * kCols + col])
              << FormatName(format) << " row " << row << " column " << col;
        }
      }
    }
    EXPECT_EQ(at, got.size());
  }
}

TEST(MatrixCopy, TakesABlockThatIsCutShortByTheMatrixsEnd) {
  ThreadPool threads(1);
  const WeightFormat format = RowMajorFormat(CodeType::kE4M3, {128, 128}, ScaleType::kF32);
  const RandomMatrix random(format, /*rows=*/200, /*cols=*/330, 5);
  const std::vector<float> weights = DecodeMatrix(random.matrix());
  auto copy = MatrixCopy::Allocate(format, 72, 74, nullptr);
  copy->Append(random.matrix(), {128, 200}, {256, 330}, threads);
  const std::vector<float> got = DecodeMatrix(copy->matrix());
  for (int row = 0; row < 72; ++row) {
    for (int col = 0; col < 74; ++col) {
      ASSERT_EQ(got[row * 74 + col], weights[(128 + row) * 330 + 256 + col]);
    }
  }
}

TEST(CutUnitOf, KeepsTogetherWhatSharesABlockAScaleOrAWord) {
  const auto cols = [](const WeightFormat& format) { return CutUnitOf(format).cols; };
  EXPECT_EQ(cols(FormatOf(DType::kBF16)), 1);
  EXPECT_EQ(cols(FormatOf(DType::kQ4_0)), 32);
  EXPECT_EQ(cols(FormatOf(DType::kQ6_K)), 256);
  const auto packed = [](CodeType code, int group, OffsetType offset) {
    return CutUnitOf(RowMajorFormat(code, {1, group}, ScaleType::kBF16, offset));
  };
  EXPECT_EQ(packed(CodeType::kU4, 32, OffsetType::kMiddle).cols, 32);
  EXPECT_EQ(packed(CodeType::kU4, 32, OffsetType::kMiddle).rows, 1);
  EXPECT_EQ(packed(CodeType::kU4, 0, OffsetType::kMiddle).cols, 8);
  EXPECT_EQ(packed(CodeType::kU4, 32, OffsetType::kZeroPoint).rows, 8);
  EXPECT_EQ(packed(CodeType::kU8, 32, OffsetType::kZeroPoint).rows, 4);
  const CutUnit square = CutUnitOf(RowMajorFormat(CodeType::kE4M3, {128, 128}, ScaleType::kBF16));
  EXPECT_EQ(square.rows, 128);
  EXPECT_EQ(square.cols, 128);
}

}  // namespace
}  // namespace lapidary
