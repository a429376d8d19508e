#include "tensor/weight_tiles.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lapidary {
namespace {

constexpr int kChunks = kTileCols / kTileGroup;
constexpr int kFineGroups = kTileCols / kFineTileGroup;

// Whether codes, or their low halves, are 4 bits in a plane of their own.
bool HasNibbles(const WeightFormat& format) {
  return format.code == CodeType::kU4 || format.code == CodeType::kU6;
}

// Of 6-bit codes, the high bits of a row.
int64_t HighBitsPlace(int row) { return int64_t{kTileRows} * kTileCols / 2 + row * 16; }

// The codes of a lane and chunk: `low` its first four columns, `high` the others. HasNibbles: their
// low 4 bits.
void StoreLane(const WeightFormat& format, const uint8_t* low, const uint8_t* high, uint8_t* to) {
  const auto put = [](uint32_t word, uint8_t* at) { std::memcpy(at, &word, sizeof(word)); };
  if (HasNibbles(format)) {
    const auto nibble = [](uint8_t code, int shift) { return (code & uint32_t{15}) << shift; };
    put(nibble(low[0], 0) | nibble(low[1], 16) | nibble(low[2], 4) | nibble(low[3], 20) |
            nibble(high[0], 8) | nibble(high[1], 24) | nibble(high[2], 12) | nibble(high[3], 28),
        to);
    return;
  }
  const uint32_t flip = format.code == CodeType::kS8 ? 0x80808080u : 0;
  const auto word = [](const uint8_t* codes) {
    return codes[0] | codes[2] << 8 | codes[1] << 16 | static_cast<uint32_t>(codes[3]) << 24;
  };
  put(word(low) ^ flip, to);
  put(word(high) ^ flip, to + 4);
}

// The high bits of 6-bit codes of a lane and chunk.
void StoreHighBits(const uint8_t* low, const uint8_t* high, uint8_t* to) {
  for (const int odd : {0, 1}) {
    to[2 * odd] = static_cast<uint8_t>(low[odd] >> 4 | low[2 + odd] >> 4 << 2 |
                                       high[odd] >> 4 << 4 | high[2 + odd] >> 4 << 6);
  }
}

// Where the code of a column of a unit lies: a byte of the stripe's unit, and the first bit in it.
struct CodePlace {
  int byte;
  int shift;
  int high_byte = 0;  // of a row's high bits
  int high_shift = 0;
};
CodePlace PlaceOf(const WeightFormat& format, int row, int col) {
  const int chunk = col / kTileGroup;
  const bool is_fine = format.group.cols == kFineTileGroup;
  const int lane = is_fine ? col % kFineTileGroup / 4 : col % kTileGroup / 8;
  const int idx = is_fine ? col % kTileGroup / kFineTileGroup * 4 + col % 4 : col % 8;
  const int lane_chunk = (row * 4 + lane) * kChunks + chunk;
  if (HasNibbles(format)) {
    const int bit = 16 * (idx % 2) + 4 * (idx / 2);
    return {.byte = lane_chunk * 4 + bit / 8,
            .shift = bit % 8,
            .high_byte = 4 * lane + 2 * (idx % 2) + chunk,
            .high_shift = 2 * (idx / 2)};
  }
  constexpr int kByteOf[4] = {0, 2, 1, 3};
  return {.byte = lane_chunk * 8 + idx / 4 * 4 + kByteOf[idx % 4], .shift = 0};
}

int64_t UnitBytes(const WeightFormat& format) { return RowBytes(format, kTileCols) * kTileRows; }

// The scales and offsets of a row in a unit.
int64_t ScalesPlace(const WeightFormat& format, int row) {
  const int64_t codes = int64_t{kTileCols} * CodeBits(format.code) / 8;
  return kTileRows * codes + row * (RowBytes(format, kTileCols) - codes);
}

// Scales and offsets are fields one after the other, the same ones for reading and for writing.
template <typename Fields>
void VisitScales(const WeightFormat& format, Fields& fields) {
  const bool has_minimum = format.offset == OffsetType::kMinimum;
  const bool has_steps = format.scale == ScaleType::kF16TimesInteger;
  const bool is_fine = format.group.cols == kFineTileGroup;
  // Where the columns of a unit share a half, it is stored once.
  const int halves = has_steps && !(is_fine && has_minimum) ? 1 : kChunks;
  for (int idx = 0; idx < halves; ++idx) fields.Scale(idx);
  for (int idx = 0; idx < (has_minimum ? halves : 0); ++idx) fields.Minimum(idx);
  if (has_steps && is_fine) {
    for (int idx = 0; idx < kFineGroups; ++idx) fields.ScaleSteps(idx);
  } else if (has_steps) {
    for (int idx = 0; idx < kChunks; ++idx) fields.ScaleSteps(2 * idx);
  }
  if ((has_steps && has_minimum) || format.offset == OffsetType::kZeroPoint) {
    for (int idx = 0; idx < kChunks; ++idx) fields.MinimumSteps(idx);
  }
}

class ScaleWriter {
 public:
  ScaleWriter(const WeightFormat& format, const TileRow& row, int64_t col, uint8_t* to)
      : format_(format), row_(row), chunk_(col / kTileGroup), to_(to) {}
  void Scale(int idx) { PutScale(row_.scale[chunk_ + idx], format_.scale); }
  void Minimum(int idx) { PutScale(row_.minimum[chunk_ + idx], ScaleType::kF16); }
  void ScaleSteps(int idx) { Put(static_cast<uint8_t>(row_.scale_steps[2 * chunk_ + idx])); }
  void MinimumSteps(int idx) { Put(row_.minimum_steps[chunk_ + idx]); }

 private:
  template <typename T>
  void Put(T value) {
    std::memcpy(to_, &value, sizeof(value));
    to_ += sizeof(value);
  }
  void PutScale(float value, ScaleType type) {
    if (type == ScaleType::kF32) return Put(value);
    Put(type == ScaleType::kBF16 ? FloatToBf16(value) : FloatToF16(value));
  }

  const WeightFormat& format_;
  const TileRow& row_;
  const int64_t chunk_;
  uint8_t* to_;
};

// Of the 64 columns of a unit, into a row of as many.
class ScaleReader {
 public:
  ScaleReader(const WeightFormat& format, const uint8_t* from, TileRow& row)
      : format_(format), from_(from), row_(row) {}
  void Scale(int idx) { Spread(TakeScale(format_.scale), idx, row_.scale); }
  void Minimum(int idx) { Spread(TakeScale(ScaleType::kF16), idx, row_.minimum); }
  void ScaleSteps(int idx) {
    row_.scale_steps[idx] = Take<int8_t>();
    if (format_.group.cols == kTileGroup) row_.scale_steps[idx + 1] = row_.scale_steps[idx];
  }
  void MinimumSteps(int idx) { row_.minimum_steps[idx] = Take<uint8_t>(); }

 private:
  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, from_, sizeof(value));
    from_ += sizeof(value);
    return value;
  }
  float TakeScale(ScaleType type) {
    if (type == ScaleType::kF32) return Take<float>();
    const auto bits = Take<uint16_t>();
    return type == ScaleType::kBF16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
  }
  // A half that the unit shares is the first, and the second until that is read.
  static void Spread(float value, int idx, std::vector<float>& to) {
    std::fill(to.begin() + idx, to.end(), value);
  }

  const WeightFormat& format_;
  const uint8_t* from_;
  TileRow& row_;
};

// A row of a unit's columns, with room for what the format has.
TileRow MakeUnitRow(const WeightFormat& format) {
  const bool has_steps = format.scale == ScaleType::kF16TimesInteger;
  const bool has_minimum = format.offset == OffsetType::kMinimum;
  TileRow row;
  row.codes.resize(kTileCols);
  row.scale.resize(kChunks);
  row.minimum.resize(has_minimum ? kChunks : 0);
  row.scale_steps.resize(has_steps ? kFineGroups : 0);
  row.minimum_steps.resize(
      (has_steps && has_minimum) || format.offset == OffsetType::kZeroPoint ? kChunks : 0);
  return row;
}

}  // namespace

bool HasTileLayout(const WeightFormat& format) {
  if (format.layout != WeightLayout::kTiles || format.group.rows != 1) return false;
  using Code = CodeType;
  using Scale = ScaleType;
  using Offset = OffsetType;
  struct Kind {
    Code code;
    Scale scale;
    Offset offset;
    int group_cols;
  };
  constexpr Kind kKinds[] = {
      {Code::kU4, Scale::kF16, Offset::kMiddle, kTileGroup},
      {Code::kU4, Scale::kBF16, Offset::kMiddle, kTileGroup},
      {Code::kU4, Scale::kF16, Offset::kMinimum, kTileGroup},
      {Code::kU4, Scale::kBF16, Offset::kZeroPoint, kTileGroup},
      {Code::kU4, Scale::kF16TimesInteger, Offset::kMinimum, kTileGroup},
      {Code::kU6, Scale::kF16TimesInteger, Offset::kMiddle, kFineTileGroup},
      {Code::kS8, Scale::kF16, Offset::kNone, kTileGroup},
      {Code::kS8, Scale::kBF16, Offset::kNone, kTileGroup},
      {Code::kS8, Scale::kF32, Offset::kNone, kTileGroup},
      {Code::kS8, Scale::kF16TimesInteger, Offset::kNone, kFineTileGroup},
      {Code::kS8, Scale::kF16TimesInteger, Offset::kMinimum, kFineTileGroup},
      {Code::kE4M3, Scale::kF32, Offset::kNone, kTileGroup},
  };
  return std::any_of(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) {
    return format.code == kind.code && format.scale == kind.scale && format.offset == kind.offset &&
           format.group.cols == kind.group_cols;
  });
}

void StoreTileRow(const TileRow& values, const WeightFormat& tiles, int64_t row, int64_t cols,
                  std::byte* matrix) {
  CHECK(HasTileLayout(tiles) && cols % kTileCols == 0) << FormatName(tiles) << " of " << cols;
  const bool is_fine = tiles.group.cols == kFineTileGroup;
  const int64_t unit_bytes = UnitBytes(tiles);
  const bool has_high_bits = tiles.code == CodeType::kU6;
  const int lane_bytes = HasNibbles(tiles) ? 4 : 8;  // of 8 codes
  const int lane_row = static_cast<int>(row % kTileRows);
  const int64_t row_scales = ScalesPlace(tiles, lane_row);
  const int64_t scale_bytes = ScalesPlace(tiles, 1) - ScalesPlace(tiles, 0);
  auto* unit =
      reinterpret_cast<uint8_t*>(matrix) + row / kTileRows * kTileRows * RowBytes(tiles, cols);
  for (int64_t first = 0; first < cols; first += kTileCols, unit += unit_bytes) {
    uint8_t* to = unit + lane_row * 4 * kChunks * lane_bytes;
    for (int lane = 0; lane < 4; ++lane) {
      for (int chunk = 0; chunk < kChunks; ++chunk, to += lane_bytes) {
        const uint8_t* codes = values.codes.data() + first + chunk * kTileGroup;
        const uint8_t* low = codes + lane * (is_fine ? 4 : 8);
        const uint8_t* high = low + (is_fine ? kFineTileGroup : 4);
        StoreLane(tiles, low, high, to);
        if (has_high_bits) {
          StoreHighBits(low, high, unit + HighBitsPlace(lane_row) + 4 * lane + chunk);
        }
      }
    }
    std::memset(unit + row_scales, 0, scale_bytes);
    ScaleWriter writer(tiles, values, first, unit + row_scales);
    VisitScales(tiles, writer);
  }
}

void UnpackTileRow(const MatrixRef& tiles, int64_t row, float* out) {
  CHECK(HasTileLayout(tiles.format)) << FormatName(tiles.format);
  const bool has_nibbles = HasNibbles(tiles.format);
  const bool has_high_bits = tiles.format.code == CodeType::kU6;
  const bool is_signed = tiles.format.code == CodeType::kS8;
  const int lane_row = static_cast<int>(row % kTileRows);
  const auto* unit = tiles.As<uint8_t>() + row / kTileRows * kTileRows * tiles.row_bytes();
  TileRow values = MakeUnitRow(tiles.format);
  for (int first = 0; first < tiles.cols; first += kTileCols, unit += UnitBytes(tiles.format)) {
    ScaleReader reader(tiles.format, unit + ScalesPlace(tiles.format, lane_row), values);
    VisitScales(tiles.format, reader);
    for (int col = 0; col < kTileCols; ++col) {
      const CodePlace at = PlaceOf(tiles.format, lane_row, col);
      const uint8_t bits = unit[at.byte];
      values.codes[col] = has_nibbles ? bits >> at.shift & 0xf : is_signed ? bits ^ 0x80 : bits;
      if (has_high_bits) {
        const uint8_t high = unit[HighBitsPlace(lane_row) + at.high_byte];
        values.codes[col] |= static_cast<uint8_t>((high >> at.high_shift & 3) << 4);
      }
      out[first + col] = TileWeight(tiles.format, values, col);
    }
  }
}

}  // namespace lapidary
