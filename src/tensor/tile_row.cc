#include "tensor/tile_row.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/block_values.h"
#include "tensor/decode.h"

namespace lapidary {
namespace {

using Code = CodeType;
using Scale = ScaleType;
using Offset = OffsetType;

constexpr int kBlockCols = 256;  // of Q4_K, Q5_K, Q6_K and IQ4_XS

bool HasSixteenBits(Scale scale) { return scale == Scale::kF16 || scale == Scale::kBF16; }

// Signed bytes with the scale as it is.
WeightFormat Bytes(Scale scale) { return TileFormat(Code::kS8, kTileGroup, scale, Offset::kNone); }
// The formats with scales that are halves times integers.
WeightFormat FineBytes(Offset offset) {
  return TileFormat(Code::kS8, kFineTileGroup, Scale::kF16TimesInteger, offset);
}

WeightFormat TilesOf4Bits(const WeightFormat& stored) {
  const bool has_points = stored.offset == Offset::kZeroPoint;
  // A code less its zero point has five bits.
  const bool takes_bytes =
      stored.scale == Scale::kF32 || (has_points && stored.scale == Scale::kF16);
  if (takes_bytes) return Bytes(stored.scale);
  return TileFormat(Code::kU4, kTileGroup, stored.scale, stored.offset);
}

// Of a block of 256 columns: two halves and what they are multiplied by.
struct BlockScales {
  float scale;
  float minimum;
  int8_t scale_steps[kBlockCols / kFineTileGroup];
  uint8_t minimum_steps[kBlockCols / kTileGroup];
};
BlockScales ScalesOf(DType type, const uint8_t* bytes) {
  const BlockBytes block(bytes);
  BlockScales scales{};
  switch (type) {
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const KScales steps = UnpackKScales(bytes + 4);
      scales.scale = block.Half(0);
      scales.minimum = -block.Half(2);
      for (int run = 0; run < 8; ++run) {
        scales.scale_steps[2 * run] = static_cast<int8_t>(steps.scale[run]);
        scales.scale_steps[2 * run + 1] = static_cast<int8_t>(steps.scale[run]);
        scales.minimum_steps[run] = steps.min[run];
      }
      return scales;
    }
    case DType::kQ6_K:
      scales.scale = block.Half(208);
      for (int run = 0; run < 16; ++run) {
        scales.scale_steps[run] = static_cast<int8_t>(block.Signed(192 + run));
      }
      return scales;
    case DType::kIQ4_XS:
      scales.scale = block.Half(0);
      for (int run = 0; run < 8; ++run) {
        const int low = block[4 + run / 2] >> run % 2 * 4 & 15;
        const int steps = (low | (block.Word(2) >> 2 * run & 3) << 4) - 32;
        scales.scale_steps[2 * run] = static_cast<int8_t>(steps);
        scales.scale_steps[2 * run + 1] = static_cast<int8_t>(steps);
      }
      return scales;
    default:
      CHECK(false) << DTypeName(type) << " has no scales of two factors";
  }
  return scales;
}

// Scales and offsets that are halves times integers, from blocks that have them so.
void CopyBlockScales(const MatrixRef& matrix, int64_t row, TileRow* out) {
  const auto* bytes = matrix.As<uint8_t>() + row * matrix.row_bytes();
  const DTypeBlock block = BlockOf(matrix.format.unit);
  CHECK_EQ(block.elements, kBlockCols) << FormatName(matrix.format);
  for (int col = 0; col < matrix.cols; col += kBlockCols, bytes += block.bytes) {
    const BlockScales scales = ScalesOf(matrix.format.unit, bytes);
    const int first = col / kTileGroup;
    std::copy(std::begin(scales.scale_steps), std::end(scales.scale_steps),
              out->scale_steps.begin() + 2 * first);
    for (int chunk = 0; chunk < kBlockCols / kTileGroup; ++chunk) {
      out->scale[first + chunk] = scales.scale;
      if (out->minimum.empty()) continue;
      // Nothing added leaves the sign of a zero as it is.
      const bool has_minimum = matrix.format.offset == Offset::kMinimum;
      out->minimum[first + chunk] = has_minimum ? scales.minimum : kNoOffset;
      out->minimum_steps[first + chunk] = has_minimum ? scales.minimum_steps[chunk] : 1;
    }
  }
}

// The same from one scale, and perhaps one offset, for each run of columns.
void CopyScales(const UnpackedRow& stored, TileRow* out) {
  for (size_t chunk = 0; chunk < out->scale.size(); ++chunk) {
    const size_t run = chunk * kTileGroup / stored.run_len;
    out->scale[chunk] = stored.scale[run];
    if (out->minimum.empty()) {
      if (!out->minimum_steps.empty()) {
        out->minimum_steps[chunk] = static_cast<uint8_t>(stored.zero[run]);
      }
      continue;
    }
    out->minimum[chunk] = stored.minimum[run];
    if (!out->minimum_steps.empty()) out->minimum_steps[chunk] = 1;
  }
  std::fill(out->scale_steps.begin(), out->scale_steps.end(), int8_t{1});
}

}  // namespace

std::optional<WeightFormat> TileFormatFor(const WeightFormat& stored) {
  const bool is_known =
      stored.layout == WeightLayout::kRowMajor || stored.layout == WeightLayout::kBlocks;
  const bool has_whole_groups =
      stored.group.cols % kTileGroup == 0 || stored.layout == WeightLayout::kBlocks;
  if (!is_known || !stored.has_scales() || !has_whole_groups) return std::nullopt;
  switch (stored.code) {
    case Code::kU4:
      return TilesOf4Bits(stored);
    case Code::kU5:
      return stored.offset == Offset::kMinimum ? FineBytes(Offset::kMinimum) : Bytes(stored.scale);
    case Code::kU6:
      return TileFormat(Code::kU6, kFineTileGroup, Scale::kF16TimesInteger, Offset::kMiddle);
    case Code::kIq4:
      return stored.scale == Scale::kF16 ? Bytes(stored.scale) : FineBytes(Offset::kNone);
    case Code::kU8:
      if (stored.offset == Offset::kZeroPoint) return std::nullopt;
      return Bytes(stored.scale);
    case Code::kS8:
      return Bytes(stored.scale);
    case Code::kE4M3:
      return TileFormat(Code::kE4M3, kTileGroup, Scale::kF32, Offset::kNone);
    default:
      return std::nullopt;
  }
}

std::optional<WeightFormat> CommonTiles(const WeightFormat& one, const WeightFormat& other) {
  if (one == other) return one;
  const auto is_integer = [](const WeightFormat& tiles) { return tiles.code != Code::kE4M3; };
  if (!is_integer(one) || !is_integer(other)) return std::nullopt;
  const auto is_plain = [](const WeightFormat& tiles) {
    return HasSixteenBits(tiles.scale) &&
           (tiles.offset == Offset::kNone || tiles.offset == Offset::kMiddle);
  };
  if (is_plain(one) && is_plain(other) && one.scale == other.scale) return Bytes(one.scale);
  const auto has_halves = [](const WeightFormat& tiles) {
    return (tiles.scale == Scale::kF16 || tiles.scale == Scale::kF16TimesInteger) &&
           tiles.offset != Offset::kZeroPoint;
  };
  if (has_halves(one) && has_halves(other)) return FineBytes(Offset::kMinimum);
  return std::nullopt;
}

bool TilesHold(const WeightFormat& tiles, const WeightFormat& stored) {
  const std::optional<WeightFormat> fitting = TileFormatFor(stored);
  return fitting && CommonTiles(*fitting, tiles) == tiles;
}

void MakeTileRow(const MatrixRef& matrix, int64_t row, const WeightFormat& tiles, TileRow* out) {
  CHECK(TilesHold(tiles, matrix.format))
      << FormatName(matrix.format) << " to " << FormatName(tiles);
  thread_local UnpackedRow stored;
  UnpackRow(matrix, row, &stored);
  const int chunks = (matrix.cols + kTileGroup - 1) / kTileGroup;
  const bool has_steps = tiles.scale == Scale::kF16TimesInteger;
  const bool has_minimum = tiles.offset == Offset::kMinimum;
  const bool has_points = tiles.offset == Offset::kZeroPoint;
  out->scale.resize(chunks);
  out->scale_steps.resize(has_steps ? 2 * chunks : 0);
  out->minimum.resize(has_minimum ? chunks : 0);
  out->minimum_steps.resize((has_minimum && has_steps) || has_points ? chunks : 0);
  if (matrix.format.scale == Scale::kF16TimesInteger) {
    CopyBlockScales(matrix, row, out);
  } else {
    CopyScales(stored, out);
  }
  out->codes.resize(matrix.cols);
  if (tiles.code == Code::kE4M3) {
    for (int col = 0; col < matrix.cols; ++col) {
      out->codes[col] = static_cast<uint8_t>(stored.codes[col]);
      // Kernels know no NaN among codes, but their product with one is.
      if ((stored.codes[col] & 0x7f) == 0x7f) {
        out->scale[col / kTileGroup] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    return;
  }
  const bool keeps_codes = tiles.code != Code::kS8;
  for (int first = 0; first < matrix.cols; first += stored.run_len) {
    const int less = keeps_codes ? 0 : stored.zero[first / stored.run_len];
    const int end = std::min(first + stored.run_len, matrix.cols);
    for (int col = first; col < end; ++col) {
      out->codes[col] = static_cast<uint8_t>(stored.codes[col] - less);
    }
  }
}

float TileWeight(const WeightFormat& tiles, const TileRow& row, int64_t col) {
  const int64_t chunk = col / kTileGroup;
  float scale = row.scale[chunk];
  if (!row.scale_steps.empty()) {
    scale *= static_cast<float>(row.scale_steps[col / kFineTileGroup]);
  }
  const uint8_t bits = row.codes[col];
  if (tiles.code == Code::kE4M3) return scale * CodeValue(tiles.code, bits);
  int code = tiles.code == Code::kS8 ? static_cast<int8_t>(bits) : bits;
  if (tiles.offset == Offset::kMiddle) code -= 1 << (CodeBits(tiles.code) - 1);
  if (tiles.offset == Offset::kZeroPoint) code -= row.minimum_steps[chunk];
  float minimum = kNoOffset;
  if (!row.minimum.empty()) {
    minimum = row.minimum[chunk];
    if (!row.minimum_steps.empty()) minimum *= static_cast<float>(row.minimum_steps[chunk]);
  }
  return scale * static_cast<float>(code) + minimum;
}

}  // namespace lapidary
