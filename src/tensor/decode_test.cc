// Every format against what it is said to mean, element by element and written out again here.
#include "tensor/decode.h"

#include <gtest/gtest.h>

#include <bit>

#include "tensor/block_formats.h"
#include "tensor/float8.h"
#include "tensor/panels.h"
#include "tensor/random_matrix.h"
#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

template <typename T>
T At(const void* plane, int64_t idx) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(plane) + idx * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

// Of a row-major format, from its definition.
float Expected(const MatrixRef& matrix, int64_t row, int64_t col) {
  const WeightFormat& format = matrix.format;
  const int64_t group_cols = format.group.cols == 0 ? matrix.cols : format.group.cols;
  const int64_t scale_cols = (matrix.cols + group_cols - 1) / group_cols;
  const int64_t scale_col = col / group_cols;
  const int64_t scale_row = format.group.rows == 0 ? 0 : row / format.group.rows;
  const int64_t at = scale_row * scale_cols + scale_col;
  float scale = 0.0f;
  if (format.scale == ScaleType::kF32) scale = At<float>(matrix.scales, at);
  if (format.scale == ScaleType::kF16) scale = F16ToFloat(At<uint16_t>(matrix.scales, at));
  if (format.scale == ScaleType::kBF16) scale = Bf16ToFloat(At<uint16_t>(matrix.scales, at));
  if (format.scale == ScaleType::kE4M3TimesTensors) {
    scale = Float8ToFloat(At<uint8_t>(matrix.scales, at)) * At<float>(matrix.tensor_scale, 0);
  }
  if (format.scale == ScaleType::kE4M3OverTensors) {
    scale = Float8ToFloat(At<uint8_t>(matrix.scales, at)) / At<float>(matrix.tensor_scale, 0);
  }
  const int bits = CodeBits(format.code);
  const int64_t per_word = 32 / bits;
  int code;
  if (format.unit == DType::kI32) {
    const int64_t words = (matrix.cols + per_word - 1) / per_word;
    const auto word = At<uint32_t>(matrix.data, row * words + col / per_word);
    code = static_cast<int>(word >> col % per_word * bits & ((1u << bits) - 1));
  } else if (bits == 8) {
    code = At<uint8_t>(matrix.data, row * matrix.cols + col);
  } else {
    code = At<uint8_t>(matrix.data, (row * matrix.cols + col) / 2) >> col % 2 * 4 & 15;
  }
  constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  if (format.code == CodeType::kE4M3) return Float8ToFloat(static_cast<uint8_t>(code)) * scale;
  if (format.code == CodeType::kE2M1) {
    return (code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8]) * scale;
  }
  if (format.code == CodeType::kS8) code = static_cast<int8_t>(code);
  int zero = 0;
  if (format.offset == OffsetType::kMiddle) zero = bits == 4 ? 8 : 128;
  if (format.offset == OffsetType::kZeroPoint) {
    const auto word = At<uint32_t>(matrix.offsets, row / per_word * scale_cols + scale_col);
    zero = static_cast<int>(word >> row % per_word * bits & ((1u << bits) - 1));
  }
  return static_cast<float>(code - zero) * scale;
}

TEST(DecodeRow, IsWhatEveryStoredFormatMeans) {
  constexpr int kRows = 130, kCols = 256;  // the last square of 128 is cut off
  uint32_t seed = 1;
  for (const WeightFormat& format : StoredFormats()) {
    const RandomMatrix random(format, kRows, kCols, ++seed);
    const MatrixRef& matrix = random.matrix();
    const std::vector<float> got = DecodeMatrix(matrix);
    std::vector<float> want(got.size());
    if (format.layout == WeightLayout::kBlocks) {
      Dequantise(format.unit, matrix.data, kRows * kCols, want.data());
    } else if (format.is_plain()) {
      want = ToFloats({matrix.As<std::byte>(), format.unit, {kRows, kCols}});
    } else {
      for (int row = 0; row < kRows; ++row) {
        for (int col = 0; col < kCols; ++col) {
          want[row * kCols + col] = Expected(matrix, row, col);
        }
      }
    }
    for (size_t idx = 0; idx < got.size(); ++idx) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[idx]), std::bit_cast<uint32_t>(want[idx]))
          << FormatName(format) << " " << idx << ": " << got[idx] << ", not " << want[idx];
    }
  }
}

TEST(DecodeRow, RowsOfPackedCodesAreWholeWords) {
  for (const int cols : {1, 7, 30, 33}) {
    const WeightFormat format =
        RowMajorFormat(CodeType::kU4, {1, 0}, ScaleType::kF32, OffsetType::kMiddle);
    const RandomMatrix random(format, 5, cols, 9);
    for (int row = 0; row < 5; ++row) {
      std::vector<float> values(cols);
      DecodeRow(random.matrix(), row, values.data());
      for (int col = 0; col < cols; ++col) {
        EXPECT_EQ(values[col], Expected(random.matrix(), row, col)) << row << ", " << col;
      }
    }
  }
}

TEST(DecodeRow, TakesPanelsToo) {
  const RandomMatrix random(FormatOf(DType::kQ4_0), 32, 96, 3);
  const MatrixRef& blocks = random.matrix();
  const WeightFormat format = FormatOf(DType::kPanel4);
  std::vector<std::byte> bytes(BytesOf(format, 32, 96).total());
  RepackPanels(blocks, 0, 32, bytes.data());
  EXPECT_EQ(DecodeMatrix({.data = bytes.data(), .format = format, .rows = 32, .cols = 96}),
            DecodeMatrix(blocks));
}

// What a kernel that keeps codes and scales apart is made from.
TEST(UnpackRow, RunsMakeTheWeights) {
  uint32_t seed = 100;
  for (const WeightFormat& format : StoredFormats()) {
    if (format.is_plain()) continue;
    const RandomMatrix random(format, 3, 256, ++seed);
    UnpackedRow row;
    std::vector<float> values(256);
    for (int idx = 0; idx < 3; ++idx) {
      UnpackRow(random.matrix(), idx, &row);
      DecodeRow(random.matrix(), idx, values.data());
      ASSERT_EQ(row.codes.size(), 256u);
      for (int col = 0; col < 256; ++col) {
        const int run = col / row.run_len;
        const float code = CodeValue(row.code, row.codes[col]);
        const float product = row.scale[run] * (code - static_cast<float>(row.zero[run]));
        EXPECT_EQ(product + row.minimum[run], values[col]) << FormatName(format) << " " << col;
        if (row.code != CodeType::kS8) {
          EXPECT_TRUE(row.codes[col] >= 0 && row.codes[col] < 1 << CodeBits(row.code));
        }
      }
    }
  }
}

TEST(MatrixRef, RowsKeepTheirScalesAndOffsets) {
  uint32_t seed = 200;
  for (const WeightFormat& format : StoredFormats()) {
    const RandomMatrix random(format, 144, 256, ++seed);
    const MatrixRef& matrix = random.matrix();
    const std::vector<float> all = DecodeMatrix(matrix);
    const int first = 128;  // a multiple of every group's and word's rows
    const std::vector<float> part = DecodeMatrix(matrix.Rows(first, 16));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first * 256))
        << FormatName(format);
    if (format.group.rows == 0 && format.has_scales()) continue;
    const MatrixRef stack = StackRows({matrix.Rows(0, first), matrix.Rows(first, 16)});
    EXPECT_EQ(DecodeMatrix(stack), all) << FormatName(format);
  }
}

TEST(MatrixRef, ScalesThatAreSharedByRowsAreNotCut) {
  const RandomMatrix squares(RowMajorFormat(CodeType::kE4M3, {128, 128}, ScaleType::kF32), 256, 128,
                             1);
  EXPECT_DEATH((void)squares.matrix().Rows(64, 64), "row 64 of F8_E4M3 F32/128x128");
  const RandomMatrix zeros(
      RowMajorFormat(CodeType::kU4, {1, 32}, ScaleType::kBF16, OffsetType::kZeroPoint), 16, 64, 1);
  EXPECT_DEATH((void)zeros.matrix().Rows(4, 4), "row 4 of U4");
  const RandomMatrix one(RowMajorFormat(CodeType::kE4M3, {0, 0}, ScaleType::kF32), 4, 8, 1);
  EXPECT_EQ(one.matrix().Rows(2, 2).scales, one.matrix().scales);
  EXPECT_DEATH(StackRows({one.matrix().Rows(0, 2), one.matrix().Rows(2, 2)}), "cannot be joined");
}

}  // namespace
}  // namespace lapidary
