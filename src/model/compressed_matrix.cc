#include "model/compressed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/float8.h"

namespace lapidary {
namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kSquare = 128;      // of values that share an FP8 scale
constexpr int64_t kFloat4Group = 16;  // values that share an NVFP4 scale

using Codes = CompressedMatrix::Codes;

// Of E2M1, whose fourth bit is the sign.
constexpr float kFloat4Values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

int64_t CeilDiv(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

int BitsOf(Codes kind) { return kind == Codes::kPacked4 ? 4 : 8; }

bool IsHalf(float value) { return F16ToFloat(FloatToF16(value)) == value; }

// NVFP4: an F8_E4M3 scale for each 16 values, times or divided by one of the matrix, in f32.
Status SetFloat4Scales(const FindTensor& find, const std::string& module,
                       CompressedMatrix& matrix) {
  const TensorView* scale = find(module + ".weight_scale");
  const TensorView* factor = find(module + ".weight_scale_2");
  const TensorView* divisor = find(module + ".weight_global_scale");
  const TensorView* global = factor != nullptr ? factor : divisor;
  const std::vector<int64_t> shape = {matrix.rows, matrix.cols / kFloat4Group};
  if (scale == nullptr || scale->dtype != DType::kF8E4M3 || scale->shape != shape) {
    return MakeError("{}.weight_scale is {}; F8_E4M3 {} beside codes of NVFP4 was expected", module,
                     scale == nullptr
                         ? std::string("missing")
                         : DTypeName(scale->dtype) + (" " + ShapeToString(scale->shape)),
                     ShapeToString(shape));
  }
  if (global == nullptr || global->dtype != DType::kF32 || global->num_elements() != 1) {
    return MakeError(
        "{}: one weight_scale_2 or weight_global_scale of type F32 beside codes of NVFP4 was "
        "expected",
        module);
  }
  const float value = ToFloats(*global)[0];
  matrix.scale_cols = shape[1];
  matrix.cols_per_scale = kFloat4Group;
  matrix.scales.resize(scale->num_elements());
  for (size_t idx = 0; idx < matrix.scales.size(); ++idx) {
    const float local = Float8ToFloat(scale->As<uint8_t>()[idx]);
    matrix.scales[idx] = factor != nullptr ? local * value : local / value;
  }
  return {};
}

Status SetScales(const TensorView* scale, const std::string& module, CompressedMatrix& matrix) {
  if (scale == nullptr) return MakeError("{}.weight_scale is missing", module);
  const bool fits_type = IsWeightDType(scale->dtype);
  const int64_t count = scale->num_elements();
  const bool is_table = scale->shape.size() == 2;
  const int64_t table_rows = is_table ? scale->shape[0] : 1;
  const int64_t table_cols = is_table ? scale->shape[1] : count;
  const bool is_float8 = matrix.codes_kind == Codes::kFloat8;
  bool fits = fits_type && count > 0;
  if (count == 1) {
    matrix.rows_per_scale = std::max<int64_t>(matrix.rows, 1);
    matrix.cols_per_scale = matrix.cols;
  } else if (table_rows == matrix.rows && table_cols > 0 && matrix.cols % table_cols == 0) {
    matrix.scale_cols = table_cols;
    matrix.cols_per_scale = matrix.cols / table_cols;
  } else if (!is_table && count == matrix.rows) {
    matrix.cols_per_scale = matrix.cols;
  } else if (is_float8 && table_rows == CeilDiv(matrix.rows, kSquare) &&
             table_cols == CeilDiv(matrix.cols, kSquare)) {
    matrix.scale_cols = table_cols;
    matrix.rows_per_scale = kSquare;
    matrix.cols_per_scale = kSquare;
  } else {
    fits = false;
  }
  if (!fits) {
    return MakeError("{}.weight_scale is {} {}, which does not fit a matrix of {} x {}", module,
                     DTypeName(scale->dtype), ShapeToString(scale->shape), matrix.rows,
                     matrix.cols);
  }
  matrix.scales = ToFloats(*scale);
  return {};
}

Status SetCodes(const FindTensor& find, const std::string& module, CompressedMatrix& matrix) {
  const TensorView* packed = find(module + ".weight_packed");
  const TensorView* plain = find(module + ".weight");
  const TensorView* codes = packed != nullptr ? packed : plain;
  if (codes == nullptr) return MakeError("{}.weight and .weight_packed are missing", module);
  const auto has_shape = [&](int64_t cols) {
    return codes->shape == std::vector<int64_t>{matrix.rows, cols};
  };
  if (packed != nullptr && packed->dtype == DType::kI32 && has_shape(CeilDiv(matrix.cols, 8))) {
    matrix.codes_kind = Codes::kPacked4;
  } else if (packed != nullptr && packed->dtype == DType::kI32 &&
             has_shape(CeilDiv(matrix.cols, 4))) {
    matrix.codes_kind = Codes::kPacked8;
  } else if (packed == nullptr && codes->dtype == DType::kI8 && has_shape(matrix.cols)) {
    matrix.codes_kind = Codes::kInt8;
  } else if (packed == nullptr && codes->dtype == DType::kF8E4M3 && has_shape(matrix.cols)) {
    matrix.codes_kind = Codes::kFloat8;
  } else if (codes->dtype == DType::kU8 && matrix.cols % kFloat4Group == 0 &&
             has_shape(matrix.cols / 2)) {
    matrix.codes_kind = Codes::kFloat4;
  } else {
    return MakeError(
        "{}.{} is {} {}, which is no matrix of {} x {} in 4 or 8 bits; other compressions are not "
        "supported",
        module, packed != nullptr ? "weight_packed" : "weight", DTypeName(codes->dtype),
        ShapeToString(codes->shape), matrix.rows, matrix.cols);
  }
  matrix.codes = codes->data;
  matrix.code_row_bytes = DTypeBytes(codes->dtype, codes->shape[1]);
  return {};
}

Status SetZeros(const TensorView* zeros, const std::string& module, CompressedMatrix& matrix) {
  if (zeros == nullptr) return {};
  const bool is_packed =
      matrix.codes_kind == Codes::kPacked4 || matrix.codes_kind == Codes::kPacked8;
  const std::vector<int64_t> shape = {CeilDiv(matrix.rows * BitsOf(matrix.codes_kind), 32),
                                      matrix.scale_cols};
  if (!is_packed || zeros->dtype != DType::kI32 || zeros->shape != shape) {
    return MakeError("{}.weight_zero_point is {} {}; I32 {} beside packed codes was expected",
                     module, DTypeName(zeros->dtype), ShapeToString(zeros->shape),
                     ShapeToString(shape));
  }
  matrix.zeros = zeros->As<int32_t>();
  return {};
}

}  // namespace

int CompressedMatrix::Step(int64_t row, int64_t col) const {
  const auto* at = reinterpret_cast<const uint8_t*>(codes) + row * code_row_bytes;
  if (codes_kind == Codes::kInt8) return static_cast<int8_t>(at[col]);
  const int bits = BitsOf(codes_kind);
  const int code = bits == 4 ? at[col / 2] >> col % 2 * 4 & 15 : at[col];
  int zero = 1 << (bits - 1);
  if (zeros != nullptr) {
    const int64_t first_bit = row * bits;
    const auto word =
        static_cast<uint32_t>(zeros[first_bit / 32 * scale_cols + col / cols_per_scale]);
    zero = static_cast<int>(word >> first_bit % 32 & ((1u << bits) - 1));
  }
  return code - zero;
}

float CompressedMatrix::Float(int64_t row, int64_t col) const {
  const auto* at = reinterpret_cast<const uint8_t*>(codes) + row * code_row_bytes;
  if (codes_kind == Codes::kFloat8) return Float8ToFloat(at[col]);
  const int code = at[col / 2] >> col % 2 * 4 & 15;
  return code < 8 ? kFloat4Values[code] : -kFloat4Values[code - 8];
}

DType CompressedMatrix::RepackedType() const {
  if (codes_kind == Codes::kFloat8 || codes_kind == Codes::kFloat4) return DType::kBF16;
  const bool has_blocks = cols % kBlock == 0 && cols_per_scale % kBlock == 0 &&
                          std::all_of(scales.begin(), scales.end(), IsHalf);
  // Codes of 8 bits with a zero of their own may be as far as 255 from it.
  const bool is_wide = zeros != nullptr && codes_kind == Codes::kPacked8;
  if (!has_blocks || is_wide) return DType::kF32;
  if (codes_kind != Codes::kPacked4) return DType::kQ8_0;
  return zeros == nullptr ? DType::kQ4_0 : DType::kQ5_0;
}

void CompressedMatrix::RepackFloats(int64_t row, DType to, std::byte* out) const {
  for (int64_t col = 0; col < cols; ++col) {
    const uint16_t rounded = FloatToBf16(Float(row, col) * Scale(row, col));
    if (to == DType::kBF16) {
      std::memcpy(out + col * 2, &rounded, 2);
    } else {
      const float widened = Bf16ToFloat(rounded);
      std::memcpy(out + col * 4, &widened, 4);
    }
  }
}

void CompressedMatrix::Repack(int64_t row, DType to, std::byte* out) const {
  if (codes_kind == Codes::kFloat8 || codes_kind == Codes::kFloat4) {
    return RepackFloats(row, to, out);
  }
  if (to == DType::kF32) {
    for (int64_t col = 0; col < cols; ++col) {
      const float value = static_cast<float>(Step(row, col)) * Scale(row, col);
      std::memcpy(out + col * 4, &value, 4);
    }
    return;
  }
  for (int64_t first = 0; first < cols; first += kBlock, out += BlockOf(to).bytes) {
    const uint16_t half = FloatToF16(Scale(row, first));
    std::memcpy(out, &half, 2);
    int steps[kBlock];
    for (int64_t idx = 0; idx < kBlock; ++idx) steps[idx] = Step(row, first + idx);
    uint8_t* bytes = reinterpret_cast<uint8_t*>(out) + 2;
    if (to == DType::kQ8_0) {
      for (int64_t idx = 0; idx < kBlock; ++idx) bytes[idx] = static_cast<uint8_t>(steps[idx]);
      continue;
    }
    const int zero = to == DType::kQ4_0 ? 8 : 16;
    if (to == DType::kQ5_0) {
      uint32_t fifth = 0;
      for (int64_t idx = 0; idx < kBlock; ++idx) {
        fifth |= static_cast<uint32_t>((steps[idx] + zero) >> 4 & 1) << idx;
      }
      std::memcpy(bytes, &fifth, 4);
      bytes += 4;
    }
    for (int64_t idx = 0; idx < kBlock / 2; ++idx) {
      const int low = (steps[idx] + zero) & 15;
      const int high = (steps[idx + kBlock / 2] + zero) & 15;
      bytes[idx] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

Result<CompressedMatrix> FindCompressed(const FindTensor& find, const std::string& module,
                                        int64_t rows, int64_t cols) {
  CompressedMatrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  if (find(module + ".weight_g_idx") != nullptr) {
    return MakeError("{}.weight_g_idx: groups of columns in another order are not supported",
                     module);
  }
  if (find(module + ".output_scale") != nullptr) {
    return MakeError("{}.output_scale: rounded outputs are not supported", module);
  }
  RETURN_IF_ERROR(SetCodes(find, module, matrix));
  if (matrix.codes_kind == Codes::kFloat4) {
    RETURN_IF_ERROR(SetFloat4Scales(find, module, matrix));
    return matrix;
  }
  RETURN_IF_ERROR(SetScales(find(module + ".weight_scale"), module, matrix));
  RETURN_IF_ERROR(SetZeros(find(module + ".weight_zero_point"), module, matrix));
  return matrix;
}

}  // namespace lapidary
