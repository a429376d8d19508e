// Random matrices of any format, for tests.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tensor/matrix_ref.h"

namespace lapidary {

// Every byte is random, but scales, which are finite and of a size that products stay tame: halves
// of about 2^-6. Nothing is aligned, as in a file.
class RandomMatrix {
 public:
  RandomMatrix(const WeightFormat& format, int rows, int cols, uint32_t seed) : random_(seed) {
    const PlaneBytes bytes = BytesOf(format, rows, cols);
    matrix_ = {.format = format, .rows = rows, .cols = cols};
    Fill(data_, bytes.data, &matrix_.data);
    Fill(scales_, bytes.scales, &matrix_.scales);
    Fill(offsets_, bytes.offsets, &matrix_.offsets);
    Fill(tensor_scale_, bytes.tensor_scale, &matrix_.tensor_scale);
    if (format.is_plain()) SetPlain();
    if (format.layout == WeightLayout::kBlocks) SetBlockScales();
    if (format.has_scale_plane()) SetPlane();
  }

  const MatrixRef& matrix() const { return matrix_; }

 private:
  void Fill(std::vector<uint8_t>& plane, int64_t bytes, const void** at) {
    if (bytes == 0) return;
    plane.resize(bytes + 1);
    for (uint8_t& byte : plane) byte = static_cast<uint8_t>(random_());
    *at = plane.data() + 1;
  }
  float Scale() {
    const float magnitude = 0x1p-6f * (1.0f + static_cast<float>(random_() % 64) / 64.0f);
    return random_() % 2 == 0 ? magnitude : -magnitude;
  }
  template <typename T>
  static void Set(std::vector<uint8_t>& plane, int64_t idx, T value) {
    std::memcpy(plane.data() + 1 + idx * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
  void SetValue(std::vector<uint8_t>& plane, DType dtype, int64_t idx, float value) {
    if (dtype == DType::kF32) Set(plane, idx, value);
    if (dtype == DType::kF16) Set(plane, idx, FloatToF16(value));
    if (dtype == DType::kBF16) Set(plane, idx, FloatToBf16(value));
  }
  void SetPlain() {
    for (int64_t idx = 0; idx < int64_t{matrix_.rows} * matrix_.cols; ++idx) {
      SetValue(data_, matrix_.format.unit, idx, Scale() * static_cast<float>(random_() % 100));
    }
  }
  void SetBlockScales() {
    const DType dtype = matrix_.format.unit;
    const DTypeBlock block = BlockOf(dtype);
    const int64_t num_blocks = int64_t{matrix_.rows} * matrix_.cols / block.elements;
    for (int64_t idx = 0; idx < num_blocks; ++idx) {
      const int64_t at = idx * block.bytes + (dtype == DType::kQ6_K ? 208 : 0);
      const auto set = [&](int64_t first) {
        const uint16_t half = FloatToF16(Scale());
        std::memcpy(data_.data() + 1 + first, &half, sizeof(half));
      };
      set(at);
      if (matrix_.format.offset == OffsetType::kMinimum) set(at + 2);
    }
  }
  void SetPlane() {
    const ScaleType scale = matrix_.format.scale;
    const bool is_float8 =
        scale == ScaleType::kE4M3TimesTensors || scale == ScaleType::kE4M3OverTensors;
    const int64_t count =
        BytesOf(matrix_.format, matrix_.rows, matrix_.cols).scales / ScaleBytes(scale);
    for (int64_t idx = 0; idx < count; ++idx) {
      if (is_float8) {
        Set(scales_, idx, static_cast<uint8_t>(random_() % 0x7f));
      } else {
        SetValue(scales_,
                 scale == ScaleType::kF32   ? DType::kF32
                 : scale == ScaleType::kF16 ? DType::kF16
                                            : DType::kBF16,
                 idx, Scale());
      }
    }
    if (is_float8) Set(tensor_scale_, 0, 0.0123f);
    if (matrix_.format.code != CodeType::kE4M3) return;
    for (size_t idx = 1; idx < data_.size(); ++idx) {
      if ((data_[idx] & 0x7f) == 0x7f) data_[idx] = 0x38;  // no NaN
    }
  }

  std::mt19937 random_;
  std::vector<uint8_t> data_, scales_, offsets_, tensor_scale_;
  MatrixRef matrix_;
};

// Every stored format that a file may have, in the variants that matter.
inline std::vector<WeightFormat> StoredFormats() {
  std::vector<WeightFormat> formats;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                            DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K,
                            DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS}) {
    formats.push_back(FormatOf(dtype));
  }
  for (const ScaleType scale : {ScaleType::kBF16, ScaleType::kF16, ScaleType::kF32}) {
    for (const CodeType code : {CodeType::kU4, CodeType::kU8}) {
      for (const int group : {32, 64, 128, 0}) {
        formats.push_back(RowMajorFormat(code, {1, group}, scale, OffsetType::kMiddle));
        formats.push_back(RowMajorFormat(code, {1, group}, scale, OffsetType::kZeroPoint));
      }
    }
    formats.push_back(RowMajorFormat(CodeType::kS8, {1, 0}, scale));
    formats.push_back(RowMajorFormat(CodeType::kE4M3, {0, 0}, scale));
    formats.push_back(RowMajorFormat(CodeType::kE4M3, {1, 0}, scale));
    formats.push_back(RowMajorFormat(CodeType::kE4M3, {128, 128}, scale));
  }
  formats.push_back(RowMajorFormat(CodeType::kE2M1, {1, 16}, ScaleType::kE4M3TimesTensors));
  formats.push_back(RowMajorFormat(CodeType::kE2M1, {1, 16}, ScaleType::kE4M3OverTensors));
  return formats;
}

}  // namespace lapidary
