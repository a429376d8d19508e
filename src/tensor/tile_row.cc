#include "tensor/tile_row.h"

#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/decode.h"

namespace lapidary {
namespace {

constexpr int kMiddle4 = 8;
constexpr int kMiddle8 = 128;

bool IsFloat(CodeType code) { return code == CodeType::kE4M3 || code == CodeType::kE2M1; }

// What codes and offsets become.
struct TileCodes {
  CodeType code;
  OffsetType offset;
  bool widens_scale;
};

std::optional<TileCodes> CodesFor(const WeightFormat& stored) {
  const bool has_points = stored.offset == OffsetType::kZeroPoint;
  switch (stored.code) {
    case CodeType::kE4M3:
    case CodeType::kE2M1:
      return TileCodes{stored.code, OffsetType::kNone, false};
    case CodeType::kU4:
      if (stored.offset != OffsetType::kZeroPoint) {
        return TileCodes{CodeType::kU4, stored.offset, false};
      }
      // -scale * zero is exact of a scale of 11 bits, and not of an f32.
      if (stored.scale == ScaleType::kF32) {
        return TileCodes{CodeType::kS8, OffsetType::kNone, false};
      }
      return TileCodes{CodeType::kU4, OffsetType::kMinimum, true};
    case CodeType::kU8:
      if (!has_points) return TileCodes{CodeType::kS8, OffsetType::kNone, false};
      if (stored.scale == ScaleType::kF32) return std::nullopt;
      return TileCodes{CodeType::kS8, OffsetType::kMinimum, true};
    case CodeType::kU5:
    case CodeType::kU6:
    case CodeType::kIq4:
    case CodeType::kS8: {
      const bool has_minimum = stored.offset == OffsetType::kMinimum;
      return TileCodes{CodeType::kS8, has_minimum ? OffsetType::kMinimum : OffsetType::kNone,
                       false};
    }
    default:
      return std::nullopt;
  }
}

ScaleType TileScale(const WeightFormat& stored, bool widens) {
  const bool is_kept = stored.scale == ScaleType::kF16 || stored.scale == ScaleType::kBF16;
  return is_kept && !widens ? stored.scale : ScaleType::kF32;
}

// 32 columns of one scale where that is possible, so that one kernel reads groups of 32, 64 and
// more; a scale for each row where codes are bytes.
std::optional<int> GroupFor(const WeightFormat& stored, CodeType code) {
  const int cols = stored.group.cols;
  if (CodeBits(code) == 8 && cols == 0) return 0;
  if (code == CodeType::kE4M3 && cols % kTileCols == 0) return cols;
  if (cols % 32 == 0) return 32;
  return cols % 16 == 0 ? std::optional(16) : std::nullopt;
}

}  // namespace

std::optional<WeightFormat> TileFormatFor(const WeightFormat& stored) {
  const bool is_known =
      stored.layout == WeightLayout::kRowMajor || stored.layout == WeightLayout::kBlocks;
  if (!is_known || !stored.has_scales()) return std::nullopt;
  const std::optional<TileCodes> codes = CodesFor(stored);
  if (!codes) return std::nullopt;
  const std::optional<int> group = GroupFor(stored, codes->code);
  if (!group) return std::nullopt;
  return TileFormat(codes->code, *group, TileScale(stored, codes->widens_scale), codes->offset);
}

void MakeTileRow(const MatrixRef& matrix, int64_t row, const WeightFormat& tiles, TileRow* out) {
  const std::optional<WeightFormat> fitting = TileFormatFor(matrix.format);
  CHECK(fitting && fitting->code == tiles.code && fitting->offset == tiles.offset &&
        fitting->group == tiles.group &&
        (tiles.scale == fitting->scale || tiles.scale == ScaleType::kF32))
      << FormatName(matrix.format) << " to " << FormatName(tiles);
  thread_local UnpackedRow stored;
  UnpackRow(matrix, row, &stored);
  const int group_cols = tiles.group.cols == 0 ? matrix.cols : tiles.group.cols;
  const int num_groups = (matrix.cols + group_cols - 1) / group_cols;
  const bool has_minimum = tiles.offset == OffsetType::kMinimum;
  // A tile's code is the stored one less this, where it does not keep a zero of its own.
  const bool keeps_codes = tiles.code == CodeType::kU4 || IsFloat(tiles.code);
  const bool is_recentred = has_minimum && matrix.format.code == CodeType::kU8;
  out->codes.resize(matrix.cols);
  out->scale.resize(num_groups);
  out->minimum.resize(has_minimum ? num_groups : 0);
  for (int group = 0; group < num_groups; ++group) {
    const int run = group * group_cols / stored.run_len;
    out->scale[group] = stored.scale[run];
    if (!has_minimum) continue;
    const int zero = stored.zero[run] - (is_recentred ? kMiddle8 : 0);
    out->minimum[group] = matrix.format.offset == OffsetType::kMinimum
                              ? stored.minimum[run]
                              : stored.scale[run] * static_cast<float>(-zero);
  }
  for (int col = 0; col < matrix.cols; ++col) {
    const int less = keeps_codes ? 0 : is_recentred ? kMiddle8 : stored.zero[col / stored.run_len];
    out->codes[col] = static_cast<uint8_t>(stored.codes[col] - less);
  }
}

float TileWeight(const WeightFormat& tiles, const TileRow& row, int64_t col) {
  const int64_t group = tiles.group.cols == 0 ? 0 : col / tiles.group.cols;
  const uint8_t bits = row.codes[col];
  float code;
  if (IsFloat(tiles.code)) {
    code = CodeValue(tiles.code, bits);
  } else if (tiles.code == CodeType::kS8) {
    code = static_cast<float>(static_cast<int8_t>(bits));
  } else {
    code = static_cast<float>(bits - (tiles.offset == OffsetType::kMiddle ? kMiddle4 : 0));
  }
  return row.scale[group] * code + (row.minimum.empty() ? kNoOffset : row.minimum[group]);
}

}  // namespace lapidary
