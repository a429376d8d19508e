#include "model/compressed_matrix.h"

#include <cstring>
#include <vector>

#include "tensor/check_scales.h"

namespace lapidary {
namespace {

constexpr int kSquare = 128;      // of values that share an FP8 scale
constexpr int kFloat4Group = 16;  // values that share an NVFP4 scale

int64_t CeilDiv(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

std::string Describe(const TensorView* tensor) {
  if (tensor == nullptr) return "missing";
  return DTypeName(tensor->dtype) + (" " + ShapeToString(tensor->shape));
}

// Codes of a module, and what they say of the format.
struct Codes {
  const TensorView* tensor = nullptr;
  CodeType type = CodeType::kU4;
  bool is_packed = false;  // in words of 32 bits
};

// NVFP4: an F8_E4M3 scale for each 16 values, times or divided by one of the matrix, in f32.
Result<MatrixRef> WithFloat4Scales(const FindTensor& find, const std::string& module,
                                   MatrixRef matrix) {
  const TensorView* scale = find(module + ".weight_scale");
  const TensorView* factor = find(module + ".weight_scale_2");
  const TensorView* divisor = find(module + ".weight_global_scale");
  if (factor != nullptr && divisor != nullptr) {
    return MakeError("{} has both a weight_scale_2 and a weight_global_scale", module);
  }
  const TensorView* global = factor != nullptr ? factor : divisor;
  const std::vector<int64_t> shape = {matrix.rows, matrix.cols / kFloat4Group};
  if (scale == nullptr || scale->dtype != DType::kF8E4M3 || scale->shape != shape) {
    return MakeError("{}.weight_scale is {}; F8_E4M3 {} beside codes of NVFP4 was expected", module,
                     Describe(scale), ShapeToString(shape));
  }
  if (global == nullptr || global->dtype != DType::kF32 || global->num_elements() != 1) {
    return MakeError(
        "{}: one weight_scale_2 or weight_global_scale of type F32 beside codes of NVFP4 was "
        "expected",
        module);
  }
  matrix.format = RowMajorFormat(
      CodeType::kE2M1, {1, kFloat4Group},
      factor != nullptr ? ScaleType::kE4M3TimesTensors : ScaleType::kE4M3OverTensors);
  matrix.scales = scale->data;
  matrix.tensor_scale = global->data;
  return matrix;
}

// How many weights share one of the scales; none: the table fits no matrix of this shape.
std::optional<WeightGroup> GroupOf(const TensorView& scale, const MatrixRef& matrix,
                                   CodeType code) {
  const int64_t count = scale.num_elements();
  const bool is_table = scale.shape.size() == 2;
  const int64_t table_rows = is_table ? scale.shape[0] : 1;
  const int64_t table_cols = is_table ? scale.shape[1] : count;
  if (count == 1) return WeightGroup{0, 0};
  if (table_rows == matrix.rows && table_cols == 1) return WeightGroup{1, 0};
  if (table_rows == matrix.rows && table_cols > 0 && matrix.cols % table_cols == 0) {
    return WeightGroup{1, static_cast<int>(matrix.cols / table_cols)};
  }
  if (!is_table && count == matrix.rows) return WeightGroup{1, 0};
  if (code == CodeType::kE4M3 && table_rows == CeilDiv(matrix.rows, kSquare) &&
      table_cols == CeilDiv(matrix.cols, kSquare)) {
    return WeightGroup{kSquare, kSquare};
  }
  return std::nullopt;
}

Result<MatrixRef> WithScales(const FindTensor& find, const std::string& module, const Codes& codes,
                             MatrixRef matrix) {
  const TensorView* scale = find(module + ".weight_scale");
  const TensorView* zeros = find(module + ".weight_zero_point");
  if (scale == nullptr) return MakeError("{}.weight_scale is missing", module);
  std::optional<WeightGroup> group;
  if (IsWeightDType(scale->dtype) && scale->num_elements() > 0) {
    group = GroupOf(*scale, matrix, codes.type);
  }
  if (!group) {
    return MakeError("{}.weight_scale is {}, which does not fit a matrix of {} x {}", module,
                     Describe(scale), matrix.rows, matrix.cols);
  }
  const ScaleType type = scale->dtype == DType::kF32   ? ScaleType::kF32
                         : scale->dtype == DType::kF16 ? ScaleType::kF16
                                                       : ScaleType::kBF16;
  const OffsetType offset = zeros != nullptr  ? OffsetType::kZeroPoint
                            : codes.is_packed ? OffsetType::kMiddle
                                              : OffsetType::kNone;
  matrix.format = RowMajorFormat(codes.type, *group, type, offset);
  matrix.scales = scale->data;
  if (zeros == nullptr) return matrix;
  const std::vector<int64_t> shape = {CeilDiv(int64_t{matrix.rows} * CodeBits(codes.type), 32),
                                      ScaleGridOf(matrix.format, matrix.rows, matrix.cols).cols};
  if (!codes.is_packed || zeros->dtype != DType::kI32 || zeros->shape != shape) {
    return MakeError("{}.weight_zero_point is {}; I32 {} beside packed codes was expected", module,
                     Describe(zeros), ShapeToString(shape));
  }
  matrix.offsets = zeros->data;
  return matrix;
}

// What packing has in words of 32 bits is said beside it.
Status CheckShape(const FindTensor& find, const std::string& module, int64_t rows, int64_t cols) {
  const TensorView* shape = find(module + ".weight_shape");
  if (shape == nullptr) return {};
  int64_t said[2] = {0, 0};
  const bool is_pair = shape->dtype == DType::kI64 && shape->num_elements() == 2;
  if (is_pair) std::memcpy(said, shape->data, sizeof(said));
  if (is_pair && said[0] == rows && said[1] == cols) return {};
  return MakeError("{}.weight_shape is {}; the I64 numbers {} and {} were expected", module,
                   is_pair ? fmt::format("{} x {}", said[0], said[1]) : Describe(shape), rows,
                   cols);
}

// A module that was left alone among those that were not: an expert of a layer.
Result<std::optional<MatrixRef>> FindPlain(const FindTensor& find, const std::string& module,
                                           int64_t rows, int64_t cols) {
  const TensorView* weight = find(module + ".weight");
  const bool is_plain = weight != nullptr && IsWeightDType(weight->dtype) &&
                        weight->shape == std::vector<int64_t>{rows, cols};
  if (!is_plain) return std::optional<MatrixRef>();
  for (const char* name : {"weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale",
                           "weight_zero_point"}) {
    if (find(module + "." + name) != nullptr) {
      return MakeError("{}.{} belongs to codes; the weight is {}", module, name, Describe(weight));
    }
  }
  return std::optional(MatrixOf(*weight));
}

Result<Codes> FindCodes(const FindTensor& find, const std::string& module, int64_t rows,
                        int64_t cols) {
  const TensorView* packed = find(module + ".weight_packed");
  const TensorView* plain = find(module + ".weight");
  const TensorView* tensor = packed != nullptr ? packed : plain;
  if (tensor == nullptr) return MakeError("{}.weight and .weight_packed are missing", module);
  if (packed != nullptr && plain != nullptr) {
    return MakeError("{} has both a weight and a weight_packed", module);
  }
  const auto is = [&](DType dtype, int64_t stored_cols) {
    return tensor->dtype == dtype && tensor->shape == std::vector<int64_t>{rows, stored_cols};
  };
  if (packed != nullptr && is(DType::kI32, CeilDiv(cols, 8)))
    return Codes{tensor, CodeType::kU4, true};
  if (packed != nullptr && is(DType::kI32, CeilDiv(cols, 4)))
    return Codes{tensor, CodeType::kU8, true};
  if (packed == nullptr && is(DType::kI8, cols)) return Codes{tensor, CodeType::kS8};
  if (packed == nullptr && is(DType::kF8E4M3, cols)) return Codes{tensor, CodeType::kE4M3};
  if (cols % kFloat4Group == 0 && is(DType::kU8, cols / 2)) return Codes{tensor, CodeType::kE2M1};
  return MakeError(
      "{}.{} is {}, which is no matrix of {} x {} in 4 or 8 bits; other compressions are not "
      "supported",
      module, packed != nullptr ? "weight_packed" : "weight", Describe(tensor), rows, cols);
}

}  // namespace

Result<MatrixRef> FindCompressed(const FindTensor& find, const std::string& module, int rows,
                                 int cols) {
  if (find(module + ".weight_g_idx") != nullptr) {
    return MakeError("{}.weight_g_idx: groups of columns in another order are not supported",
                     module);
  }
  if (find(module + ".output_scale") != nullptr) {
    return MakeError("{}.output_scale: rounded outputs are not supported", module);
  }
  ASSIGN_OR_RETURN(const std::optional<MatrixRef> plain, FindPlain(find, module, rows, cols));
  if (plain) return *plain;
  RETURN_IF_ERROR(CheckShape(find, module, rows, cols));
  ASSIGN_OR_RETURN(const Codes codes, FindCodes(find, module, rows, cols));
  const MatrixRef matrix{.data = codes.tensor->data, .rows = rows, .cols = cols};
  const bool is_float4 = codes.type == CodeType::kE2M1;
  for (const char* name : {"weight_scale_2", "weight_global_scale"}) {
    if (!is_float4 && find(module + "." + name) != nullptr) {
      return MakeError("{}.{} belongs to codes of NVFP4; here they are {}", module, name,
                       Describe(codes.tensor));
    }
  }
  ASSIGN_OR_RETURN(const MatrixRef scaled, is_float4 ? WithFloat4Scales(find, module, matrix)
                                                     : WithScales(find, module, codes, matrix));
  if (const std::optional<BadScale> bad = FindBadScale(scaled)) {
    const bool is_modelopt = scaled.format.scale == ScaleType::kE4M3TimesTensors;
    return MakeError("{}.{}{}", module,
                     !bad->is_of_tensor ? "weight_scale"
                     : is_modelopt      ? "weight_scale_2"
                                        : "weight_global_scale",
                     bad->problem);
  }
  return scaled;
}

}  // namespace lapidary
