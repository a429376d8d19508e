#include "tensor/weight_tiles.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tensor/decode.h"
#include "tensor/random_matrix.h"
#include "tensor/repack.h"

namespace lapidary {
namespace {

// A stored format, and one of tiles that holds it.
struct Way {
  WeightFormat stored;
  WeightFormat tiles;

  std::string Name() const { return FormatName(stored) + " to " + FormatName(tiles); }
};
std::vector<Way> AllWays() {
  std::vector<Way> ways;
  std::set<std::string> names;
  const auto add = [&](const Way& way) {
    if (names.insert(way.Name()).second) ways.push_back(way);
  };
  for (const WeightFormat& stored : StoredFormats()) {
    const std::optional<WeightFormat> tiles = TileFormatFor(stored);
    if (!tiles) continue;
    add({stored, *tiles});
    for (const WeightFormat& other : StoredFormats()) {
      const std::optional<WeightFormat> others = TileFormatFor(other);
      const std::optional<WeightFormat> common =
          others ? CommonTiles(*tiles, *others) : std::nullopt;
      if (common) add({stored, *common});
    }
  }
  return ways;
}

TEST(WeightTiles, HoldEveryWeightBitForBit) {
  for (const Way& way : AllWays()) {
    for (const auto& [rows, cols] : {std::pair{8, 256}, {16, 768}, {40, 704}}) {
      if (!FitsColumns(way.stored, cols)) continue;
      SCOPED_TRACE(way.Name());
      const RandomMatrix made(way.stored, rows, cols, static_cast<uint32_t>(rows + cols));
      ASSERT_TRUE(HasTileLayout(way.tiles));
      ASSERT_TRUE(CanRepack(way.stored, way.tiles));
      MatrixRef tiled{.data = nullptr, .format = way.tiles, .rows = rows, .cols = cols};
      // Nothing is left of what was there.
      std::vector<std::byte> bytes(tiled.bytes().total(), std::byte{0xff});
      tiled.data = bytes.data();
      RepackRows(made.matrix(), 0, rows, way.tiles, bytes.data());
      std::vector<float> expected(cols), found(cols);
      for (int row = 0; row < rows; ++row) {
        DecodeRow(made.matrix(), row, expected.data());
        UnpackTileRow(tiled, row, found.data());
        for (int col = 0; col < cols; ++col) {
          ASSERT_EQ(std::bit_cast<uint32_t>(found[col]), std::bit_cast<uint32_t>(expected[col]))
              << row << ", " << col << ": " << found[col] << " instead of " << expected[col];
        }
      }
    }
  }
}

TEST(WeightTiles, OfSomeRowsAreAPartOfTheWhole) {
  constexpr int kRows = 32, kCols = 256;
  for (const auto& [stored, tiles] : AllWays()) {
    SCOPED_TRACE(FormatName(stored));
    const RandomMatrix made(stored, kRows, kCols, 5);
    MatrixRef tiled{.data = nullptr, .format = tiles, .rows = kRows, .cols = kCols};
    std::vector<std::byte> whole(tiled.bytes().total()), parts(whole.size());
    RepackRows(made.matrix(), 0, kRows, tiles, whole.data());
    RepackRows(made.matrix(), 5, kRows, tiles, parts.data());
    RepackRows(made.matrix(), 0, 5, tiles, parts.data());
    EXPECT_EQ(whole, parts);
    // Rows of a tiled matrix, by whole stripes, are a matrix.
    tiled.data = whole.data();
    const MatrixRef last = tiled.Rows(24, 8);
    std::vector<float> from_part(kCols), from_whole(kCols);
    UnpackTileRow(last, 3, from_part.data());
    UnpackTileRow(tiled, 27, from_whole.data());
    EXPECT_EQ(from_part, from_whole);
  }
}

// The bytes as the header draws them.
TEST(WeightTiles, ScalesLieInTheirFields) {
  struct Case {
    WeightFormat format;
    int row_bytes;
    std::vector<uint8_t> scales;
  };
  TileRow row;
  row.codes.assign(64, 0);
  row.scale = {2.0f, 2.0f};
  row.minimum = {-1.0f, -1.0f};
  row.scale_steps = {3, 3, -4, -4};
  row.minimum_steps = {5, 6};
  using enum CodeType;
  using Scale = ScaleType;
  using Offset = OffsetType;
  const Case cases[] = {
      {TileFormat(kU4, 32, Scale::kF16, Offset::kMiddle), 36, {0, 0x40, 0, 0x40}},
      {TileFormat(kU4, 32, Scale::kF16, Offset::kMinimum),
       40,
       {0, 0x40, 0, 0x40, 0, 0xbc, 0, 0xbc}},
      {TileFormat(kU4, 32, Scale::kBF16, Offset::kZeroPoint), 40, {0, 0x40, 0, 0x40, 5, 6, 0, 0}},
      {TileFormat(kU4, 32, Scale::kF16TimesInteger, Offset::kMinimum),
       40,
       {0, 0x40, 0, 0xbc, 3, 0xfc, 5, 6}},
      {TileFormat(kU6, 16, Scale::kF16TimesInteger, Offset::kMiddle),
       56,
       {0, 0x40, 3, 3, 0xfc, 0xfc, 0, 0}},
      {TileFormat(kS8, 32, Scale::kBF16, Offset::kNone), 68, {0, 0x40, 0, 0x40}},
      {TileFormat(kS8, 32, Scale::kF32, Offset::kNone), 72, {0, 0, 0, 0x40, 0, 0, 0, 0x40}},
      {TileFormat(kS8, 16, Scale::kF16TimesInteger, Offset::kNone),
       72,
       {0, 0x40, 3, 3, 0xfc, 0xfc, 0, 0}},
      {TileFormat(kS8, 16, Scale::kF16TimesInteger, Offset::kMinimum),
       80,
       {0, 0x40, 0, 0x40, 0, 0xbc, 0, 0xbc, 3, 3, 0xfc, 0xfc, 5, 6, 0, 0}},
      {TileFormat(kE4M3, 32, Scale::kF32, Offset::kNone), 72, {0, 0, 0, 0x40, 0, 0, 0, 0x40}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(FormatName(test.format));
    EXPECT_EQ(RowBytes(test.format, 64), test.row_bytes);
    std::vector<uint8_t> bytes(8 * test.row_bytes, 0xee);
    StoreTileRow(row, test.format, 1, 64, reinterpret_cast<std::byte*>(bytes.data()));
    const size_t width = test.scales.size();
    const auto at = bytes.end() - static_cast<int64_t>(7 * width);
    EXPECT_EQ(std::vector<uint8_t>(at, at + static_cast<int64_t>(width)), test.scales);
  }
}

}  // namespace
}  // namespace lapidary
