#include "tensor/repack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "tensor/decode.h"
#include "tensor/float8.h"
#include "tensor/panels.h"
#include "tensor/quantise.h"
#include "tensor/weight_tiles.h"

namespace lapidary {
namespace {

constexpr int kBlock = 32;  // of Q4_0, Q5_0 and Q8_0

bool IsInteger(CodeType code) {
  return code == CodeType::kU4 || code == CodeType::kU8 || code == CodeType::kS8;
}

// Codes less their zero: [-8, 7] of Q4_0, [-16, 15] of Q5_0, [-128, 127] of Q8_0.
bool StepsFit(const WeightFormat& from, DType to) {
  const bool has_points = from.offset == OffsetType::kZeroPoint;
  switch (to) {
    case DType::kQ4_0:
      return from.code == CodeType::kU4 && !has_points;
    case DType::kQ5_0:
      return from.code == CodeType::kU4;
    case DType::kQ8_0:
      return CodeBits(from.code) == 4 || !has_points;
    default:
      return false;
  }
}

// One block of Q4_0, Q5_0 or Q8_0.
void StoreBlock(DType to, float scale, const int* steps, std::byte* out) {
  const uint16_t half = FloatToF16(scale);
  std::memcpy(out, &half, 2);
  uint8_t* bytes = reinterpret_cast<uint8_t*>(out) + 2;
  if (to == DType::kQ8_0) {
    for (int idx = 0; idx < kBlock; ++idx) bytes[idx] = static_cast<uint8_t>(steps[idx]);
    return;
  }
  const int zero = to == DType::kQ4_0 ? 8 : 16;
  if (to == DType::kQ5_0) {
    uint32_t fifth = 0;
    for (int idx = 0; idx < kBlock; ++idx) {
      fifth |= static_cast<uint32_t>((steps[idx] + zero) >> 4 & 1) << idx;
    }
    std::memcpy(bytes, &fifth, 4);
    bytes += 4;
  }
  for (int idx = 0; idx < kBlock / 2; ++idx) {
    const int low = (steps[idx] + zero) & 15;
    const int high = (steps[idx + kBlock / 2] + zero) & 15;
    bytes[idx] = static_cast<uint8_t>(low | high << 4);
  }
}

void RowToBlocks(const MatrixRef& from, int64_t row, DType to, std::byte* out) {
  thread_local UnpackedRow unpacked;
  UnpackRow(from, row, &unpacked);
  int steps[kBlock];
  for (int first = 0; first < from.cols; first += kBlock, out += BlockOf(to).bytes) {
    const int run = first / unpacked.run_len;
    for (int idx = 0; idx < kBlock; ++idx) {
      steps[idx] = unpacked.codes[first + idx] - unpacked.zero[run];
    }
    StoreBlock(to, unpacked.scale[run], steps, out);
  }
}

void StoreBf16(const float* values, int64_t count, std::byte* out) {
  for (int64_t idx = 0; idx < count; ++idx) {
    const uint16_t rounded = FloatToBf16(values[idx]);
    std::memcpy(out + idx * 2, &rounded, 2);
  }
}

}  // namespace

bool CanRepack(const WeightFormat& from, const WeightFormat& to) {
  if (from == to) return from.has_dtype();
  if (from.layout == WeightLayout::kTiles) return false;
  if (to.layout == WeightLayout::kTiles) return TilesHold(to, from) && HasTileLayout(to);
  if (to.is_plain()) return to.unit == DType::kF32 || to.unit == DType::kBF16;
  if (to.layout == WeightLayout::kPanels) {
    return from.layout == WeightLayout::kBlocks && PanelDType(from.unit) == to.unit;
  }
  return to.layout == WeightLayout::kBlocks && from.layout == WeightLayout::kRowMajor &&
         from.has_scales() && IsInteger(from.code) && from.group.cols % kBlock == 0 &&
         StepsFit(from, to.unit);
}

void RepackRows(const MatrixRef& from, int64_t begin, int64_t end, const WeightFormat& to,
                std::byte* out) {
  CHECK(CanRepack(from.format, to)) << FormatName(from.format) << " to " << FormatName(to);
  CHECK(0 <= begin && begin <= end && end <= from.rows) << begin << " to " << end;
  const int64_t row_bytes = RowBytes(to, from.cols);
  if (to.layout == WeightLayout::kPanels) return RepackPanels(from, begin, end, out);
  if (from.format == to) {
    std::memcpy(out + begin * row_bytes, from.As<std::byte>() + begin * row_bytes,
                (end - begin) * row_bytes);
    return;
  }
  if (to.layout == WeightLayout::kTiles) {
    TileRow values;
    for (int64_t row = begin; row < end; ++row) {
      MakeTileRow(from, row, to, &values);
      StoreTileRow(values, to, row, from.cols, out);
    }
    return;
  }
  std::vector<float> values(to.is_plain() ? from.cols : 0);
  for (int64_t row = begin; row < end; ++row) {
    std::byte* const to_row = out + row * row_bytes;
    if (to.layout == WeightLayout::kBlocks) {
      RowToBlocks(from, row, to.unit, to_row);
      continue;
    }
    DecodeRow(from, row, values.data());
    if (to.unit == DType::kF32) {
      std::memcpy(to_row, values.data(), values.size() * sizeof(float));
    } else {
      StoreBf16(values.data(), from.cols, to_row);
    }
  }
}

bool ScalesAreHalves(const MatrixRef& matrix) {
  const ScaleGrid grid = ScaleGridOf(matrix.format, matrix.rows, matrix.cols);
  for (int64_t idx = 0; idx < grid.rows * grid.cols; ++idx) {
    const float scale = ScaleAt(matrix, idx);
    if (F16ToFloat(FloatToF16(scale)) != scale) return false;
  }
  return true;
}

bool CanRound(const WeightFormat& from, DType to, int64_t cols) {
  if (!from.is_plain()) return false;
  return CanQuantiseTo(to) && cols % BlockOf(to).elements == 0;
}

void RoundRows(const MatrixRef& from, int64_t begin, int64_t end, DType to, std::byte* out) {
  CHECK(CanRound(from.format, to, from.cols)) << FormatName(from.format) << " to " << DTypeName(to);
  CHECK(0 <= begin && begin <= end && end <= from.rows) << begin << " to " << end;
  const int64_t row_bytes = DTypeBytes(to, from.cols);
  std::vector<float> values(from.cols);
  for (int64_t row = begin; row < end; ++row) {
    DecodeRow(from, row, values.data());
    Quantise(values.data(), from.cols, to, out + row * row_bytes);
  }
}

void RoundRowsToFloat8(const MatrixRef& from, int64_t begin, int64_t end, std::byte* codes,
                       std::byte* scales) {
  CHECK(from.format.is_plain()) << FormatName(from.format);
  CHECK(0 <= begin && begin <= end && end <= from.rows) << begin << " to " << end;
  std::vector<float> values(from.cols);
  for (int64_t row = begin; row < end; ++row) {
    DecodeRow(from, row, values.data());
    float largest = 0.0f;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    const uint16_t bits = FloatToBf16(largest / kLargestFloat8);
    std::memcpy(scales + row * 2, &bits, sizeof(bits));
    const float scale = Bf16ToFloat(bits);
    std::byte* const to = codes + row * from.cols;
    for (int col = 0; col < from.cols; ++col) {
      to[col] = std::byte{scale == 0.0f ? uint8_t{0} : FloatToFloat8(values[col] / scale)};
    }
  }
}

}  // namespace lapidary
