#include "tensor/decode.h"

#include <cstring>

#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/float8.h"
#include "tensor/panels.h"

namespace lapidary {
namespace {

// Files align nothing.
template <typename T>
T LoadAt(const void* values, int64_t idx) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(values) + idx * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

// The code that is 0.
int MiddleOf(CodeType code) { return 1 << (CodeBits(code) - 1); }

// The zero point of a row: the codes of consecutive rows are packed into words, low bits first.
int ZeroPoint(const MatrixRef& matrix, int64_t row, int64_t scale_cols, int64_t scale_col) {
  const int bits = CodeBits(matrix.format.code);
  const int64_t first_bit = row * bits;
  const auto word = LoadAt<uint32_t>(matrix.offsets, first_bit / 32 * scale_cols + scale_col);
  return static_cast<int>(word >> first_bit % 32 & ((1u << bits) - 1));
}

void UnpackRowMajor(const MatrixRef& matrix, int64_t row, UnpackedRow* out) {
  const WeightFormat& format = matrix.format;
  const ScaleGrid grid = ScaleGridOf(format, matrix.rows, matrix.cols);
  const int64_t scale_row = format.group.rows == 0 ? 0 : row / format.group.rows;
  out->code = format.code;
  out->run_len = format.group.cols == 0 ? matrix.cols : format.group.cols;
  out->scale.resize(grid.cols);
  out->zero.assign(grid.cols, 0);
  out->minimum.assign(grid.cols, kNoOffset);
  for (int64_t run = 0; run < grid.cols; ++run) {
    out->scale[run] = ScaleAt(matrix, scale_row * grid.cols + run);
    if (format.offset == OffsetType::kMiddle) out->zero[run] = MiddleOf(format.code);
    if (format.offset == OffsetType::kZeroPoint) {
      out->zero[run] = ZeroPoint(matrix, row, grid.cols, run);
    }
  }
  const auto* bytes = matrix.As<uint8_t>() + row * matrix.row_bytes();
  out->codes.resize(matrix.cols);
  if (CodeBits(format.code) == 4) {
    for (int col = 0; col < matrix.cols; ++col) {
      out->codes[col] = static_cast<int16_t>(bytes[col / 2] >> col % 2 * 4 & 15);
    }
  } else if (format.code == CodeType::kS8) {
    for (int col = 0; col < matrix.cols; ++col) {
      out->codes[col] = static_cast<int8_t>(bytes[col]);
    }
  } else {
    CHECK_EQ(CodeBits(format.code), 8) << FormatName(format);
    for (int col = 0; col < matrix.cols; ++col) out->codes[col] = bytes[col];
  }
}

void UnpackBlockRow(const MatrixRef& matrix, int64_t row, UnpackedRow* out) {
  const WeightFormat& format = matrix.format;
  const DTypeBlock shape = BlockOf(format.unit);
  const int num_runs = matrix.cols / format.group.cols;
  const bool has_middle = format.offset == OffsetType::kMiddle;
  const int zero = has_middle ? MiddleOf(format.code) : 0;
  out->code = format.code == CodeType::kIq4 ? CodeType::kS8 : format.code;
  out->run_len = format.group.cols;
  out->codes.resize(matrix.cols);
  out->scale.resize(num_runs);
  out->minimum.resize(num_runs);
  out->zero.assign(num_runs, zero);
  const std::byte* next = matrix.As<std::byte>() + row * matrix.row_bytes();
  for (int col = 0, run = 0; col < matrix.cols; col += shape.elements, next += shape.bytes) {
    const UnpackedBlock block = UnpackBlock(format.unit, next);
    for (int idx = 0; idx < shape.elements; ++idx) {
      out->codes[col + idx] = static_cast<int16_t>(block.q[idx] + zero);
    }
    for (int idx = 0; idx < block.num_runs; ++idx, ++run) {
      out->scale[run] = block.scale[idx];
      out->minimum[run] = block.offset[idx];
    }
  }
}

float PlainValue(const MatrixRef& matrix, const std::byte* row, int col) {
  switch (matrix.format.unit) {
    case DType::kF32:
      return LoadAt<float>(row, col);
    case DType::kF16:
      return F16ToFloat(LoadAt<uint16_t>(row, col));
    default:
      CHECK(matrix.format.unit == DType::kBF16) << FormatName(matrix.format);
      return Bf16ToFloat(LoadAt<uint16_t>(row, col));
  }
}

}  // namespace

float ScaleAt(const MatrixRef& matrix, int64_t idx) {
  const auto tensor_scale = [&] {
    const WeightFormat& format = matrix.format;
    if (format.tensor_rows == 0) return LoadAt<float>(matrix.tensor_scale, 0);
    const int64_t grid_cols = ScaleGridOf(format, matrix.rows, matrix.cols).cols;
    const int64_t row = idx / grid_cols * format.group.rows;
    return LoadAt<float>(matrix.tensor_scale, row / format.tensor_rows);
  };
  switch (matrix.format.scale) {
    case ScaleType::kF32:
      return LoadAt<float>(matrix.scales, idx);
    case ScaleType::kF16:
      return F16ToFloat(LoadAt<uint16_t>(matrix.scales, idx));
    case ScaleType::kBF16:
      return Bf16ToFloat(LoadAt<uint16_t>(matrix.scales, idx));
    case ScaleType::kE4M3TimesTensors:
      return Float8ToFloat(LoadAt<uint8_t>(matrix.scales, idx)) * tensor_scale();
    case ScaleType::kE4M3OverTensors:
      return Float8ToFloat(LoadAt<uint8_t>(matrix.scales, idx)) / tensor_scale();
    case ScaleType::kNone:
    case ScaleType::kF16TimesInteger:
      break;
  }
  CHECK(false) << FormatName(matrix.format) << " has no plane of scales";
  return 0.0f;
}

float CodeValue(CodeType code, int bits) {
  constexpr float kE2M1Values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  if (code == CodeType::kE4M3) return Float8ToFloat(static_cast<uint8_t>(bits));
  if (code == CodeType::kE2M1) return bits < 8 ? kE2M1Values[bits] : -kE2M1Values[bits - 8];
  return static_cast<float>(bits);
}

void UnpackRow(const MatrixRef& matrix, int64_t row, UnpackedRow* out) {
  CHECK(0 <= row && row < matrix.rows) << row << " of " << matrix.rows << " rows";
  CHECK(matrix.format.has_scales()) << FormatName(matrix.format);
  if (matrix.format.layout == WeightLayout::kBlocks) return UnpackBlockRow(matrix, row, out);
  CHECK(matrix.format.layout == WeightLayout::kRowMajor) << FormatName(matrix.format);
  UnpackRowMajor(matrix, row, out);
}

void DecodeRow(const MatrixRef& matrix, int64_t row, float* out) {
  CHECK(0 <= row && row < matrix.rows) << row << " of " << matrix.rows << " rows";
  if (matrix.format.layout == WeightLayout::kPanels) return UnpackPanelRow(matrix, row, out);
  if (matrix.format.is_plain()) {
    const std::byte* values = matrix.As<std::byte>() + row * matrix.row_bytes();
    for (int col = 0; col < matrix.cols; ++col) out[col] = PlainValue(matrix, values, col);
    return;
  }
  thread_local UnpackedRow unpacked;
  UnpackRow(matrix, row, &unpacked);
  const bool is_integer = unpacked.code != CodeType::kE4M3 && unpacked.code != CodeType::kE2M1;
  for (int col = 0; col < matrix.cols; ++col) {
    const int run = col / unpacked.run_len;
    const float value = is_integer ? static_cast<float>(unpacked.codes[col] - unpacked.zero[run])
                                   : CodeValue(unpacked.code, unpacked.codes[col]);
    out[col] = unpacked.scale[run] * value + unpacked.minimum[run];
  }
}

std::vector<float> DecodeMatrix(const MatrixRef& matrix) {
  std::vector<float> values(int64_t{matrix.rows} * matrix.cols);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    DecodeRow(matrix, row, values.data() + row * matrix.cols);
  }
  return values;
}

}  // namespace lapidary
