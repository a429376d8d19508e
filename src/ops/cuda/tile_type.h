// The formats of weights that GPU kernels multiply with, as what kernels are templates over.
#pragma once

#include <cstdint>
#include <optional>

#include "base/check.h"
#include "base/host_device.h"
#include "tensor/matrix_ref.h"
#include "tensor/weight_tiles.h"

namespace lapidary::cuda {

enum class TileType : uint8_t {
  kBf16,    // row-major, the only one without tiles
  kU4F16,   // codes of 4 bits, 8 is zero; a scale in f16 for 32 of them (tensor/weight_tiles.h)
  kU4Bf16,  // the same with scales in bf16
  kS8F16,   // codes of 8 bits
  kS8Bf16,
};

LAPIDARY_HOST_DEVICE constexpr bool IsTiled(TileType type) { return type != TileType::kBf16; }
LAPIDARY_HOST_DEVICE constexpr bool Is4Bit(TileType type) {
  return type == TileType::kU4F16 || type == TileType::kU4Bf16;
}
LAPIDARY_HOST_DEVICE constexpr bool HasF16Scales(TileType type) {
  return type == TileType::kU4F16 || type == TileType::kS8F16;
}
// Of 8 rows and 64 columns of a tiled format.
LAPIDARY_HOST_DEVICE constexpr int TileUnitBytes(TileType type) { return Is4Bit(type) ? 288 : 544; }

// None: no kernel multiplies with it.
inline std::optional<TileType> FindTileType(const WeightFormat& format) {
  if (format == FormatOf(DType::kBF16)) return TileType::kBf16;
  const bool has_offset =
      format.offset == OffsetType::kMinimum || format.offset == OffsetType::kZeroPoint;
  const bool has_scale = format.scale == ScaleType::kF16 || format.scale == ScaleType::kBF16;
  if (!HasTileLayout(format) || has_offset || !has_scale) return std::nullopt;
  const bool has_f16_scales = format.scale == ScaleType::kF16;
  if (format.code == CodeType::kU4) return has_f16_scales ? TileType::kU4F16 : TileType::kU4Bf16;
  return has_f16_scales ? TileType::kS8F16 : TileType::kS8Bf16;
}
// Of weights that kernels were asked about before.
inline TileType TileTypeOf(const MatrixRef& weight) {
  const std::optional<TileType> type = FindTileType(weight.format);
  CHECK(type) << "no kernel for weights in " << FormatName(weight.format);
  return *type;
}
inline bool IsTiled(const MatrixRef& weight) { return IsTiled(TileTypeOf(weight)); }

}  // namespace lapidary::cuda
