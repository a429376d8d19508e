#include "ops/cpu/code_scales.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tensor/float8.h"

namespace lapidary::cpu {
namespace {

const ScaleTable& Float8Values() {
  static const ScaleTable values = [] {
    ScaleTable table;
    for (size_t bits = 0; bits < table.size(); ++bits) {
      table[bits] = Float8ToFloat(static_cast<uint8_t>(bits));
    }
    return table;
  }();
  return values;
}

}  // namespace

bool HasCodePieces(const MatrixRef& w) {
  return w.format.is_float_codes() && w.cols % kCodePiece == 0 &&
         w.format.group.cols % kCodePiece == 0;
}

int64_t NumScales(const MatrixRef& w) { return ScaleGridOf(w.format, w.rows, w.cols).cols; }

void LoadScales(const MatrixRef& w, int64_t row, float* out) {
  const int64_t count = NumScales(w);
  const int64_t first = w.format.group.rows == 0 ? 0 : row / w.format.group.rows * count;
  const std::byte* const scales =
      static_cast<const std::byte*>(w.scales) + first * ScaleBytes(w.format.scale);
  if (w.format.scale == ScaleType::kF32) {
    std::memcpy(out, scales, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const bool is_bf16 = w.format.scale == ScaleType::kBF16;
  CHECK(is_bf16 || w.format.scale == ScaleType::kF16) << FormatName(w.format);
  for (int64_t idx = 0; idx < count; ++idx) {
    uint16_t bits;
    std::memcpy(&bits, scales + idx * 2, sizeof(bits));
    out[idx] = is_bf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
  }
}

void MakeScaleTable(const MatrixRef& w, int64_t row, ScaleTable& table) {
  const int64_t tensor = w.format.tensor_rows == 0 ? 0 : row / w.format.tensor_rows;
  float factor;
  std::memcpy(&factor, static_cast<const std::byte*>(w.tensor_scale) + tensor * 4, sizeof(factor));
  const ScaleTable& values = Float8Values();
  if (w.format.scale == ScaleType::kE4M3TimesTensors) {
    for (size_t bits = 0; bits < table.size(); ++bits) table[bits] = values[bits] * factor;
  } else {
    CHECK(w.format.scale == ScaleType::kE4M3OverTensors) << FormatName(w.format);
    for (size_t bits = 0; bits < table.size(); ++bits) table[bits] = values[bits] / factor;
  }
}

int64_t RowsOfTable(const MatrixRef& w, int64_t row, int64_t end) {
  if (w.format.tensor_rows == 0) return end - row;
  return std::min<int64_t>(end - row, w.format.tensor_rows - row % w.format.tensor_rows);
}

}  // namespace lapidary::cpu
