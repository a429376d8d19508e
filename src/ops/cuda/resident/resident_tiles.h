// How the rows of a matrix are dealt out to the blocks of a resident step, and to the slots of
// their rings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "ops/cuda/tile_type.h"

namespace lapidary::cuda {

// A slot holds some chunks of 64 values of k of a tile of up to 16 weight rows: in bf16 as TMA lays
// them out, chunk by chunk, rows of 128 bytes; in a tiled format (tensor/weight_tiles.h) the units
// of one stripe, then those of another.
inline constexpr int kSlotRows = 16;
inline constexpr int kSlotWarps = 4;  // that multiply the weights of one slot
inline constexpr int kChunkValues = 64;
inline constexpr int kChunkRowBytes = 128;

// This block's share of so many things, [begin, end), nearly equal ones for all blocks.
struct BlockShare {
  int begin;
  int end;
  LAPIDARY_HOST_DEVICE_INLINE BlockShare(uint32_t count, uint32_t block, uint32_t num_blocks)
      : begin(static_cast<int>(count * block / num_blocks)),
        end(static_cast<int>(count * (block + 1) / num_blocks)) {}
};

// A matrix [num_rows, in_dim], and how each block's part of its rows is cut into tiles. Of a gated
// matrix, [gate; up], a tile is some features: as many rows of each half.
struct alignas(16) ResidentMatrix {
  int num_rows = 0;
  int in_dim = 0;
  int tile_size = 0;    // rows, or features; even
  int last_size = 0;    // of the last tile of the blocks with the most
  int most_tiles = 0;   // of any block
  int slot_chunks = 0;  // even, but of experts: two halves of a team take turns
  int tile_slots = 0;   // of a tile
  bool gated = false;
  bool one_copy = false;  // for a slot; else one for every chunk, for widths that end within one
  // Of chosen experts: num_rows are those of one. Gate and up are dealt out rank by rank, some
  // blocks to each; of down a tile's chunks of k are those of the first rank, then of the next.
  bool by_rank = false;
  int8_t num_ranks = 0;  // 0: no experts
  TileType format = TileType::kBf16;
  // Of tiled formats: the matrix, and the bytes of 8 rows of a chunk.
  int unit_bytes = 0;
  const std::byte* tiles = nullptr;

  LAPIDARY_HOST_DEVICE_INLINE bool is_tiled() const { return unit_bytes != 0; }
  // Rows, or features, that blocks are dealt at a time.
  LAPIDARY_HOST_DEVICE_INLINE int granule() const { return is_tiled() ? 8 : 2; }
  // From the second stripe of a slot to the first.
  LAPIDARY_HOST_DEVICE_INLINE int stripe_place() const { return slot_chunks * unit_bytes; }
  LAPIDARY_HOST_DEVICE_INLINE int rank_chunks() const { return in_dim / kChunkValues / num_ranks; }
};
static_assert(sizeof(ResidentMatrix) == 48);

// Lines of a slot, rows of chunks, from the first half of a gated tile of `size` features to the
// second: whole periods of the swizzle.
LAPIDARY_HOST_DEVICE_INLINE int HalfLines(const ResidentMatrix& matrix, int size) {
  return (matrix.slot_chunks * size + 7) / 8 * 8;
}

// Of a tiled format: rows in multiples of 8, of each half of a gated matrix; in_dim of 64.
inline ResidentMatrix PlanTiledMatrix(int num_rows, int in_dim, bool gated, int num_blocks,
                                      int slot_bytes, TileType format) {
  ResidentMatrix matrix;
  matrix.num_rows = num_rows;
  matrix.in_dim = in_dim;
  matrix.gated = gated;
  matrix.format = format;
  matrix.unit_bytes = TileUnitBytes(format);
  const int halves = gated ? 2 : 1;
  const int stripes = num_rows / halves / 8;
  const int most = 8 * ((stripes + num_blocks - 1) / num_blocks);
  matrix.tile_size = gated ? 8 : std::min(kSlotRows, most);
  matrix.most_tiles = (most + matrix.tile_size - 1) / matrix.tile_size;
  matrix.last_size = most - (matrix.most_tiles - 1) * matrix.tile_size;
  const int num_chunks = in_dim / kChunkValues;
  // Of a tile with one stripe the other's place is read as well, and what is there not used.
  const int room = slot_bytes / (2 * matrix.unit_bytes);
  matrix.tile_slots = (num_chunks + room - 1) / room;
  matrix.slot_chunks = (num_chunks + matrix.tile_slots - 1) / matrix.tile_slots;
  return matrix;
}

inline ResidentMatrix PlanResidentMatrix(int num_rows, int in_dim, bool gated, int num_blocks,
                                         int slot_bytes, TileType format = TileType::kBf16) {
  if (format != TileType::kBf16) {
    return PlanTiledMatrix(num_rows, in_dim, gated, num_blocks, slot_bytes, format);
  }
  ResidentMatrix matrix;
  matrix.num_rows = num_rows;
  matrix.in_dim = in_dim;
  matrix.gated = gated;
  matrix.one_copy = in_dim % kChunkValues == 0;
  const int halves = gated ? 2 : 1;
  const int pairs = num_rows / halves / 2;
  const int most = 2 * ((pairs + num_blocks - 1) / num_blocks);  // rows, or features, of a block
  const int room = kSlotRows / halves;
  const int num_tiles = (most + room - 1) / room;
  matrix.tile_size = ((most + num_tiles - 1) / num_tiles + 1) / 2 * 2;
  matrix.most_tiles = (most + matrix.tile_size - 1) / matrix.tile_size;
  matrix.last_size = most - (matrix.most_tiles - 1) * matrix.tile_size;
  const int num_chunks = (in_dim + kChunkValues - 1) / kChunkValues;
  const int chunk_bytes = halves * matrix.tile_size * kChunkRowBytes;
  matrix.slot_chunks = std::min(slot_bytes / chunk_bytes / 2 * 2, (num_chunks + 1) / 2 * 2);
  while (halves * HalfLines(matrix, matrix.tile_size) * kChunkRowBytes > slot_bytes) {
    matrix.slot_chunks -= 2;
  }
  matrix.tile_slots = (num_chunks + matrix.slot_chunks - 1) / matrix.slot_chunks;
  // As many slots, of about the same size.
  const int even_share = (num_chunks + 2 * matrix.tile_slots - 1) / (2 * matrix.tile_slots);
  matrix.slot_chunks = 2 * even_share;
  return matrix;
}

// Gate and up of experts of `width` features, for so many chosen ones.
inline ResidentMatrix PlanExpertGateUp(int width, int hidden, int num_ranks, int num_blocks,
                                       int slot_bytes, TileType format = TileType::kBf16) {
  ResidentMatrix matrix =
      PlanResidentMatrix(2 * width, hidden, true, num_blocks / num_ranks, slot_bytes, format);
  matrix.by_rank = true;
  matrix.num_ranks = static_cast<int8_t>(num_ranks);
  return matrix;
}

// Down: the input is the activations of all ranks, one behind the other. No slot has chunks of two
// ranks. The width is a multiple of kChunkValues.
inline ResidentMatrix PlanExpertDown(int hidden, int width, int num_ranks, int num_blocks,
                                     int slot_bytes, TileType format = TileType::kBf16) {
  ResidentMatrix matrix =
      PlanResidentMatrix(hidden, num_ranks * width, false, num_blocks, slot_bytes, format);
  matrix.num_ranks = static_cast<int8_t>(num_ranks);
  const int room =
      slot_bytes / (matrix.is_tiled() ? 2 * matrix.unit_bytes : matrix.tile_size * kChunkRowBytes);
  matrix.slot_chunks = matrix.rank_chunks();
  while (matrix.slot_chunks > room || matrix.rank_chunks() % matrix.slot_chunks != 0) {
    --matrix.slot_chunks;
  }
  matrix.tile_slots = num_ranks * matrix.rank_chunks() / matrix.slot_chunks;
  return matrix;
}

// A block's part. Rows come in pairs, since results are sent in pairs; tiled ones in stripes.
struct MatrixPart {
  ResidentMatrix matrix;
  int num_chunks;
  int rank;       // of the experts whose gate and up it is part of
  int first;      // row, or feature
  int count;      // rows, or features
  int up_offset;  // rows from a gate to its up row; 0: not gated

  LAPIDARY_HOST_DEVICE_INLINE MatrixPart(const ResidentMatrix& whole, int block, int num_blocks)
      : matrix(whole), num_chunks((whole.in_dim + kChunkValues - 1) / kChunkValues) {
    const int features = matrix.gated ? matrix.num_rows / 2 : matrix.num_rows;
    const int blocks = matrix.by_rank ? num_blocks / matrix.num_ranks : num_blocks;
    rank = matrix.by_rank ? block / blocks : 0;
    const int granule = matrix.granule();
    const BlockShare share(features / granule, block - rank * blocks, blocks);
    first = granule * share.begin;
    count = matrix.by_rank && rank >= matrix.num_ranks ? 0 : granule * (share.end - share.begin);
    up_offset = matrix.gated ? features : 0;
  }

  LAPIDARY_HOST_DEVICE_INLINE int num_tiles() const {
    return (count + matrix.tile_size - 1) / matrix.tile_size;
  }
  LAPIDARY_HOST_DEVICE_INLINE bool IsLast(int tile) const { return tile == matrix.most_tiles - 1; }
  // Rows, or features, for which there is room in the slots of a tile.
  LAPIDARY_HOST_DEVICE_INLINE int TileSize(int tile) const {
    return IsLast(tile) ? matrix.last_size : matrix.tile_size;
  }
  LAPIDARY_HOST_DEVICE_INLINE int TileBegin(int tile) const {
    return first + tile * matrix.tile_size;
  }
  // Of these, so many are this block's.
  LAPIDARY_HOST_DEVICE_INLINE int TileCount(int tile) const {
    const int left = count - tile * matrix.tile_size;
    return left < matrix.tile_size ? left : matrix.tile_size;
  }
};

// Where in a slot the matrix instructions of a computing warp find a tile. A warp takes half a
// chunk of every two, its steps, each for two instructions of 16 values of k; its lanes give the
// places of four matrices of 8 rows by 16 bytes for each (LoadMatrices): rows 0..7 and 8..15 (of a
// gated tile: gate and up rows) of the first 8 values, then of the others. Places of one parity of
// steps lie `step` bytes apart: four chunks of an even number of rows, a whole number of the
// swizzle's periods.
struct LanePlace {
  static constexpr int kChunksPerStep = kSlotWarps / 2;
  static constexpr int kSecond = 32;  // the place of the second instruction is that ^ kSecond

  int chunk;  // of the first step
  int place[2] = {};
  int step = 0;

  LAPIDARY_HOST_DEVICE_INLINE LanePlace(int warp, int lane)
      : chunk(warp % kSlotWarps / 2),
        row_(lane % 8),
        is_high_(lane / 8 % 2 == 1),
        piece_(warp % 2 * 4 + lane / 16) {}

  // Of a slot whose first `end` chunks are to be multiplied.
  LAPIDARY_HOST_DEVICE_INLINE int NumSteps(int end) const {
    return (end - chunk + kChunksPerStep - 1) / kChunksPerStep;
  }

  // For a tile of `size` rows, or features (MatrixPart::TileSize).
  LAPIDARY_HOST_DEVICE_INLINE void SetSize(const ResidentMatrix& matrix, int size) {
    const int up = matrix.gated && is_high_ ? HalfLines(matrix, size) : 0;
    const int row = is_high_ && !matrix.gated ? row_ + 8 : row_;
    // Of rows that the slot has no room for: any other, nobody reads their sums.
    const int line = chunk * size + (row < size ? row : size - 1) + up;
    place[0] = Swizzled(line);
    place[1] = Swizzled(line + kChunksPerStep * size);
    step = 2 * kChunksPerStep * size * kChunkRowBytes;
  }

 private:
  LAPIDARY_HOST_DEVICE_INLINE int Swizzled(int line) const {
    return line * kChunkRowBytes + ((piece_ ^ (line % 8)) * 16);
  }

  int row_;
  bool is_high_;
  int piece_;  // of the chunk's 8 pieces of 16 bytes
};

// Where the pairs of an input x lie in shared memory, counted in pairs: of 32 values, lane t of
// four finds the pairs that its two matrix instructions take, 2 t + {0, 8, 16, 24} on, side by
// side.
LAPIDARY_HOST_DEVICE_INLINE int InputPlace(int pair) {
  return pair / 16 * 16 + pair % 4 * 4 + pair % 16 / 4;
}

}  // namespace lapidary::cuda
