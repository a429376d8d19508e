#include "tensor/weight_tiles.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/decode.h"
#include "tensor/repack.h"

namespace lapidary {
namespace {

// Formats of files whose tiles have a layout.
const WeightFormat kStored[] = {
    FormatOf(DType::kQ4_0),
    FormatOf(DType::kQ5_0),
    FormatOf(DType::kQ8_0),
    FormatOf(DType::kIQ4_NL),
    RowMajorFormat(CodeType::kU4, {1, 32}, ScaleType::kBF16, OffsetType::kMiddle),
    RowMajorFormat(CodeType::kU4, {1, 64}, ScaleType::kF16, OffsetType::kMiddle)};

struct RandomMatrix {
  std::vector<std::byte> data, scales;
  MatrixRef matrix;
};

// Any bytes are codes; scales are finite, of both signs.
RandomMatrix MakeRandom(const WeightFormat& format, int rows, int cols, uint64_t seed) {
  std::mt19937_64 random(seed);
  RandomMatrix made;
  made.matrix = {.data = nullptr, .format = format, .rows = rows, .cols = cols};
  const PlaneBytes bytes = made.matrix.bytes();
  made.data.resize(bytes.data);
  made.scales.resize(bytes.scales);
  for (std::byte& byte : made.data) byte = static_cast<std::byte>(random());
  const auto put_scale = [&](std::byte* to) {
    const auto scale = static_cast<uint16_t>(random() & 0xbbff);
    std::memcpy(to, &scale, sizeof(scale));
  };
  if (bytes.scales == 0) {
    for (size_t at = 0; at < made.data.size(); at += BlockOf(format.unit).bytes) {
      put_scale(made.data.data() + at);
    }
  }
  for (size_t at = 0; at < made.scales.size(); at += 2) put_scale(made.scales.data() + at);
  made.matrix.data = made.data.data();
  if (bytes.scales > 0) made.matrix.scales = made.scales.data();
  return made;
}

TEST(WeightTiles, HoldEveryWeightBitForBit) {
  for (const WeightFormat& stored : kStored) {
    for (const auto& [rows, cols] : {std::pair{8, 64}, {16, 192}, {40, 704}}) {
      SCOPED_TRACE(FormatName(stored));
      const RandomMatrix made = MakeRandom(stored, rows, cols, rows + cols);
      const std::optional<WeightFormat> tiles = TileFormatFor(stored);
      ASSERT_TRUE(tiles && HasTileLayout(*tiles));
      ASSERT_TRUE(CanRepack(stored, *tiles));
      MatrixRef tiled{.data = nullptr, .format = *tiles, .rows = rows, .cols = cols};
      std::vector<std::byte> bytes(tiled.bytes().total());
      tiled.data = bytes.data();
      RepackRows(made.matrix, 0, rows, *tiles, bytes.data());
      std::vector<float> expected(cols), found(cols);
      for (int row = 0; row < rows; ++row) {
        DecodeRow(made.matrix, row, expected.data());
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
  constexpr int kRows = 32, kCols = 128;
  for (const WeightFormat& stored : kStored) {
    SCOPED_TRACE(FormatName(stored));
    const RandomMatrix made = MakeRandom(stored, kRows, kCols, 5);
    const WeightFormat tiles = *TileFormatFor(stored);
    MatrixRef tiled{.data = nullptr, .format = tiles, .rows = kRows, .cols = kCols};
    std::vector<std::byte> whole(tiled.bytes().total()), parts(whole.size());
    RepackRows(made.matrix, 0, kRows, tiles, whole.data());
    RepackRows(made.matrix, 5, kRows, tiles, parts.data());
    RepackRows(made.matrix, 0, 5, tiles, parts.data());
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

TEST(WeightTiles, OfOtherCodesHaveNoLayoutYet) {
  for (const DType dtype : {DType::kQ4_1, DType::kQ4_K, DType::kQ6_K}) {
    const std::optional<WeightFormat> tiles = TileFormatFor(FormatOf(dtype));
    ASSERT_TRUE(tiles) << DTypeName(dtype);
    EXPECT_FALSE(HasTileLayout(*tiles)) << DTypeName(dtype);
    EXPECT_FALSE(CanRepack(FormatOf(dtype), *tiles)) << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace lapidary
