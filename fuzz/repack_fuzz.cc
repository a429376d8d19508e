// Any bytes as a matrix in any format that a file may have: what repacks it for the CPU and for a
// GPU's tiles neither reads nor writes beyond it, and every weight that is finite stays what it is.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "tensor/decode.h"
#include "tensor/random_matrix.h"
#include "tensor/repack.h"
#include "tensor/tile_row.h"
#include "tensor/weight_tiles.h"

namespace lapidary {
namespace {

// A plane of its own on the heap, so that a sanitizer sees its ends; the input again and again.
std::vector<uint8_t> Plane(int64_t bytes, std::span<const uint8_t> input, size_t& next) {
  std::vector<uint8_t> plane(bytes);
  for (uint8_t& byte : plane) byte = input[next++ % input.size()];
  return plane;
}

const void* DataOf(const std::vector<uint8_t>& plane) {
  return plane.empty() ? nullptr : plane.data();
}

// Where a scale is beyond all measure, a minimum may be infinite and the weight not.
void CheckWeight(float got, float want, const WeightFormat& format) {
  if (std::isfinite(got) && std::isfinite(want)) CHECK_EQ(got, want) << FormatName(format);
}

void CheckTiles(const MatrixRef& matrix, const std::vector<float>& weights,
                const WeightFormat& tiles) {
  TileRow row;
  for (int idx = 0; idx < matrix.rows; ++idx) {
    MakeTileRow(matrix, idx, tiles, &row);
    for (int col = 0; col < matrix.cols; ++col) {
      CheckWeight(TileWeight(tiles, row, col), weights[int64_t{idx} * matrix.cols + col], tiles);
    }
  }
  if (matrix.cols % kTileCols != 0) return;
  std::vector<std::byte> bytes(BytesOf(tiles, matrix.rows, matrix.cols).total());
  RepackRows(matrix, 0, matrix.rows, tiles, bytes.data());
  const MatrixRef tiled{
      .data = bytes.data(), .format = tiles, .rows = matrix.rows, .cols = matrix.cols};
  std::vector<float> found(matrix.cols);
  for (int idx = 0; idx < matrix.rows; ++idx) {
    UnpackTileRow(tiled, idx, found.data());
    for (int col = 0; col < matrix.cols; ++col) {
      CheckWeight(found[col], weights[int64_t{idx} * matrix.cols + col], tiles);
    }
  }
}

void CheckRows(const MatrixRef& matrix) {
  const std::vector<float> weights = DecodeMatrix(matrix);
  const bool halves = matrix.format.has_scale_plane() && ScalesAreHalves(matrix);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ4_0, DType::kQ5_0, DType::kQ8_0}) {
    const WeightFormat to = FormatOf(dtype);
    if (!CanRepack(matrix.format, to) || !FitsColumns(to, matrix.cols)) continue;
    std::vector<std::byte> bytes(BytesOf(to, matrix.rows, matrix.cols).total());
    RepackRows(matrix, 0, matrix.rows, to, bytes.data());
    const MatrixRef repacked{
        .data = bytes.data(), .format = to, .rows = matrix.rows, .cols = matrix.cols};
    if (dtype == DType::kBF16 || (to.layout == WeightLayout::kBlocks && !halves)) continue;
    const std::vector<float> got = DecodeMatrix(repacked);
    for (size_t idx = 0; idx < got.size(); ++idx) {
      if (std::isfinite(weights[idx])) CHECK_EQ(got[idx], weights[idx]) << FormatName(to);
    }
  }
  const std::optional<WeightFormat> tiles = TileFormatFor(matrix.format);
  if (!tiles) return;
  CheckTiles(matrix, weights, *tiles);
  // What it becomes beside others, at the widest.
  const WeightFormat widest = *TileFormatFor(FormatOf(DType::kQ5_K));
  if (TilesHold(widest, matrix.format)) CheckTiles(matrix, weights, widest);
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lapidary;
  constexpr size_t kHeader = 3;
  if (size <= kHeader) return 0;
  static const std::vector<WeightFormat> formats = StoredFormats();
  const WeightFormat& format = formats[data[0] % formats.size()];
  const int rows = 1 + data[1] % 140;
  const int wanted = 1 + data[2] * 2;
  // Rows of blocks are whole blocks; those of groups have whole groups but for squares.
  const int unit = std::max(BlockOf(format.unit).elements, format.group.cols);
  const bool is_square = format.group.rows > 1;
  const int cols = is_square ? wanted : (wanted + unit - 1) / unit * unit;
  const PlaneBytes bytes = BytesOf(format, rows, cols);
  const std::span<const uint8_t> input(data + kHeader, size - kHeader);
  size_t next = 0;
  const std::vector<uint8_t> codes = Plane(bytes.data, input, next);
  const std::vector<uint8_t> scales = Plane(bytes.scales, input, next);
  const std::vector<uint8_t> offsets = Plane(bytes.offsets, input, next);
  const std::vector<uint8_t> tensor_scale = Plane(bytes.tensor_scale, input, next);
  CheckRows({.data = DataOf(codes),
             .format = format,
             .rows = rows,
             .cols = cols,
             .scales = DataOf(scales),
             .offsets = DataOf(offsets),
             .tensor_scale = DataOf(tensor_scale)});
  return 0;
}
