// How a format decides where the rows of a matrix lie.
#include "tensor/matrix_ref.h"

#include <gtest/gtest.h>

#include <vector>

#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

TEST(MatrixRef, RowsAreWholeBlocksOfTheFormat) {
  const auto row_bytes = [](DType dtype, int cols) {
    return MatrixRef{.format = FormatOf(dtype), .rows = 3, .cols = cols}.row_bytes();
  };
  EXPECT_EQ(row_bytes(DType::kBF16, 70), 140);
  EXPECT_EQ(row_bytes(DType::kQ4_0, 96), 3 * 18);
  EXPECT_EQ(row_bytes(DType::kQ4_K, 2560), 10 * 144);
  const MatrixRef matrix{.format = FormatOf(DType::kQ4_0), .rows = 5, .cols = 64};
  EXPECT_EQ(matrix.bytes().total(), 5 * 36);
  EXPECT_DEATH(row_bytes(DType::kQ4_0, 48), "Q4_0");
}

TEST(MatrixRef, SomeRowsBeginWhereTheFormatSaysSo) {
  std::vector<std::byte> memory(10 * 36);
  const MatrixRef matrix{
      .data = memory.data(), .format = FormatOf(DType::kQ4_0), .rows = 10, .cols = 64};
  const MatrixRef part = matrix.Rows(4, 3);
  EXPECT_EQ(part.As<std::byte>() - memory.data(), 4 * 36);
  EXPECT_EQ(part.rows, 3);
  EXPECT_EQ(part.cols, 64);
  EXPECT_EQ(part.format, FormatOf(DType::kQ4_0));
  EXPECT_DEATH((void)matrix.Rows(8, 3), "8 . 3 of 10 rows");
}

TEST(MatrixRef, ATensorIsTheRowsOfItsLastDim) {
  const std::byte memory[1] = {};
  const MatrixRef experts = MatrixOf(TensorView{memory, DType::kF16, {4, 6, 8}});
  EXPECT_EQ(experts.data, memory);
  EXPECT_EQ(experts.format, FormatOf(DType::kF16));
  EXPECT_EQ(experts.rows, 24);
  EXPECT_EQ(experts.cols, 8);
}

TEST(MatrixRef, AStackIsTheMatricesThatLieBehindEachOther) {
  std::vector<std::byte> memory(9 * 36);
  const MatrixRef all{
      .data = memory.data(), .format = FormatOf(DType::kQ4_0), .rows = 9, .cols = 64};
  const MatrixRef stack = StackRows({all.Rows(0, 4), all.Rows(4, 2), {}, all.Rows(6, 3)});
  EXPECT_EQ(stack.data, all.data);
  EXPECT_EQ(stack.rows, 9);
  EXPECT_EQ(StackRows({all}).rows, 9);
  EXPECT_EQ(StackRows({{}, {}}).data, nullptr);
  EXPECT_DEATH(StackRows({all.Rows(0, 4), all.Rows(5, 2)}), "does not lie behind");
  MatrixRef other = all.Rows(4, 2);
  other.format = FormatOf(DType::kBF16);
  EXPECT_DEATH(StackRows({all.Rows(0, 4), other}), "BF16 of 64 behind Q4_0 of 64");
}

TEST(TensorView, ABlockTypeHasWholeBlocksInItsRows) {
  EXPECT_EQ((TensorView{nullptr, DType::kQ4_K, {3, 512}}.num_bytes()), 3 * 2 * 144);
  EXPECT_DEATH((void)TensorView({nullptr, DType::kQ4_0, {32, 16}}).num_bytes(), "32, 16");
}

}  // namespace
}  // namespace lapidary
