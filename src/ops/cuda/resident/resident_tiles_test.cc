// The arithmetic of resident_tiles.h, without a GPU: TMA's layout of a slot is played
// by a plain loop.
#include "ops/cuda/resident/resident_tiles.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "ops/cuda/resident/resident_tuning.h"

namespace lapidary::cuda {
namespace {

struct Shape {
  int num_rows;
  int in_dim;
  bool gated;
  int num_blocks = 132;
};

// Those of the models, also on cards with fewer SMs, and small and odd ones.
constexpr Shape kShapes[] = {
    {2048, 1536, false},      {5120, 1536, false},      {1536, 4096, false},
    {24576, 1536, true},      {1536, 12288, false},     {256, 1536, false},
    {1536, 256, false},       {262144, 1536, false},    {3072, 2560, false},
    {20480, 2560, true},      {2560, 10240, false},     {8704, 3840, false},
    {30720, 3840, true},      {3840, 15360, false},     {43008, 5376, true},
    {5376, 21504, false},     {24576, 1536, true, 114}, {1536, 12288, false, 114},
    {5376, 21504, false, 78}, {768, 80, false, 40},     {192, 80, true, 40},
    {80, 96, false, 40},      {24, 96, false, 48},      {96, 24, false, 48},
    {300, 832, false, 11},    {96, 320, true, 5},       {70, 192, false, 3},
};

class ResidentTilesTest : public testing::TestWithParam<int> {
 protected:
  ResidentMatrix Plan(const Shape& shape) const {
    return PlanResidentMatrix(shape.num_rows, shape.in_dim, shape.gated, shape.num_blocks,
                              slot_bytes_);
  }
  const int slot_bytes_ = kResidentTunings[GetParam()].slot_bytes;
};
INSTANTIATE_TEST_SUITE_P(Tunings, ResidentTilesTest, testing::Range(0, kNumResidentTunings));

TEST_P(ResidentTilesTest, EveryRowIsInOneTileOfOneBlockAndSlotsHoldTheirTiles) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.num_rows << " x " << shape.in_dim);
    const ResidentMatrix matrix = Plan(shape);
    const int halves = shape.gated ? 2 : 1;
    EXPECT_EQ(matrix.tile_size % 2, 0);
    EXPECT_EQ(matrix.last_size % 2, 0);
    EXPECT_GT(matrix.last_size, 0);
    EXPECT_LE(matrix.last_size, matrix.tile_size);
    EXPECT_LE(halves * matrix.tile_size, kSlotRows);
    EXPECT_GT(matrix.slot_chunks, 0);
    EXPECT_EQ(matrix.slot_chunks % 2, 0);
    EXPECT_LE(matrix.slot_chunks, 256);  // of a box
    EXPECT_LE(halves * HalfLines(matrix, matrix.tile_size) * kChunkRowBytes, slot_bytes_);
    EXPECT_EQ(matrix.tile_slots, (shape.in_dim + matrix.slot_chunks * kChunkValues - 1) /
                                     (matrix.slot_chunks * kChunkValues));
    std::vector<int> times(shape.num_rows / halves);
    for (int block = 0; block < shape.num_blocks; ++block) {
      const MatrixPart part(matrix, block, shape.num_blocks);
      ASSERT_LE(part.num_tiles(), matrix.most_tiles);
      for (int tile = 0; tile < part.num_tiles(); ++tile) {
        ASSERT_LE(part.TileCount(tile), part.TileSize(tile));
        for (int row = 0; row < part.TileCount(tile); ++row) ++times[part.TileBegin(tile) + row];
      }
    }
    for (const int count : times) ASSERT_EQ(count, 1);
  }
}

// What lies where in a slot: 16 bytes are 8 values of one row.
struct Place {
  int row = -1;
  int k = -1;
};

// A box of part rows from `row` on, in the 128-byte swizzle.
void CopyBox(int row, int num_rows, int first_chunk, int num_chunks, int offset,
             std::vector<Place>& slot) {
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    for (int idx = 0; idx < num_rows; ++idx) {
      const int line = offset / kChunkRowBytes + chunk * num_rows + idx;
      for (int piece = 0; piece < 8; ++piece) {
        slot.at(line * 8 + (piece ^ (line % 8))) = {
            row + idx, (first_chunk + chunk) * kChunkValues + piece * 8};
      }
    }
  }
}

// In the part of the last block.
void ExpectInstructionsFindEveryValue(const ResidentMatrix& matrix, int num_blocks,
                                      int slot_bytes) {
  const bool gated = matrix.gated;
  const MatrixPart part(matrix, num_blocks - 1, num_blocks);
  for (int tile = 0; tile < part.num_tiles(); ++tile) {
    const int size = part.TileSize(tile);
    std::set<std::pair<int, int>> found;  // row, k
    for (int chunk = 0; chunk < part.num_chunks; chunk += matrix.slot_chunks) {
      std::vector<Place> slot(slot_bytes / 16);
      CopyBox(part.TileBegin(tile), size, chunk, matrix.slot_chunks, 0, slot);
      if (gated) {
        CopyBox(part.TileBegin(tile) + part.up_offset, size, chunk, matrix.slot_chunks,
                HalfLines(matrix, size) * kChunkRowBytes, slot);
      }
      const int end = std::min(matrix.slot_chunks, part.num_chunks - chunk);
      for (int warp = 0; warp < kSlotWarps; ++warp) {
        for (int lane = 0; lane < 32; ++lane) {
          LanePlace lane_place(warp, lane);
          lane_place.SetSize(matrix, size);
          for (int idx = 0; idx < 2 * lane_place.NumSteps(end); ++idx) {
            const int step = idx / 2;
            const int at = (lane_place.place[step % 2] + step / 2 * lane_place.step) ^
                           (idx % 2 == 1 ? LanePlace::kSecond : 0);
            const Place place = slot.at(at / 16);
            // Rows 0..7, then 8..15, of the first 8 values of k, then of the others.
            const int k =
                (chunk + lane_place.chunk + step * LanePlace::kChunksPerStep) * kChunkValues +
                warp % 2 * 32 + idx % 2 * 16 + lane / 16 * 8;
            ASSERT_EQ(place.k, k);
            const bool is_high = lane / 8 % 2 == 1;
            const int row = lane % 8 + (is_high && !gated ? 8 : 0);
            if (row >= size) continue;
            ASSERT_EQ(place.row,
                      part.TileBegin(tile) + row + (is_high && gated ? part.up_offset : 0));
            ASSERT_TRUE(found.emplace(place.row, k).second);
          }
        }
      }
    }
    const int rows = (gated ? 2 : 1) * size;
    EXPECT_EQ(found.size(), size_t(rows) * part.num_chunks * 8);
  }
  // Full tiles: the rows of a matrix lie in different banks.
  if (matrix.tile_size * (gated ? 2 : 1) != kSlotRows) return;
  for (int warp = 0; warp < kSlotWarps; ++warp) {
    for (int first = 0; first < 32; first += 8) {
      std::set<int> banks;
      for (int lane = first; lane < first + 8; ++lane) {
        LanePlace place(warp, lane);
        place.SetSize(matrix, matrix.tile_size);
        banks.insert(place.place[0] % 128);
      }
      EXPECT_EQ(banks.size(), 8u);
    }
  }
}

TEST_P(ResidentTilesTest, MatrixInstructionsFindEveryValueOnceAndInDifferentBanks) {
  for (const Shape& shape : kShapes) {
    if (shape.num_rows > 30000) continue;  // like the others
    SCOPED_TRACE(testing::Message() << shape.num_rows << " x " << shape.in_dim);
    ExpectInstructionsFindEveryValue(Plan(shape), shape.num_blocks, slot_bytes_);
  }
}

struct ExpertShape {
  int width;
  int hidden;
  int num_ranks;
  int num_blocks;
};
// 26B-A4B's on two cards, Pebble's, and odd ones.
constexpr ExpertShape kExpertShapes[] = {
    {704, 2816, 8, 132}, {704, 2816, 8, 128}, {64, 128, 2, 64}, {64, 96, 4, 48}, {320, 200, 3, 7}};

TEST_P(ResidentTilesTest, EveryFeatureOfEveryRankIsInOneTileOfOneBlock) {
  for (const ExpertShape& shape : kExpertShapes) {
    SCOPED_TRACE(testing::Message() << shape.width << " x " << shape.hidden);
    const ResidentMatrix matrix =
        PlanExpertGateUp(shape.width, shape.hidden, shape.num_ranks, shape.num_blocks, slot_bytes_);
    std::vector<int> times(shape.num_ranks * shape.width);
    for (int block = 0; block < shape.num_blocks; ++block) {
      const MatrixPart part(matrix, block, shape.num_blocks);
      ASSERT_LE(part.num_tiles(), matrix.most_tiles);
      for (int tile = 0; tile < part.num_tiles(); ++tile) {
        ASSERT_LE(part.TileCount(tile), part.TileSize(tile));
        for (int idx = 0; idx < part.TileCount(tile); ++idx) {
          const int feature = part.TileBegin(tile) + idx;
          ASSERT_LT(feature, shape.width) << "no tile has features of two experts";
          ++times.at(part.rank * shape.width + feature);
        }
      }
    }
    for (const int count : times) ASSERT_EQ(count, 1);
  }
}

TEST_P(ResidentTilesTest, SlotsOfExpertsDownHaveChunksOfOneRank) {
  for (const ExpertShape& shape : kExpertShapes) {
    SCOPED_TRACE(testing::Message() << shape.width << " x " << shape.hidden);
    const ResidentMatrix matrix =
        PlanExpertDown(shape.hidden, shape.width, shape.num_ranks, shape.num_blocks, slot_bytes_);
    EXPECT_EQ(matrix.rank_chunks(), shape.width / kChunkValues);
    EXPECT_EQ(matrix.rank_chunks() % matrix.slot_chunks, 0);
    EXPECT_EQ(matrix.tile_slots * matrix.slot_chunks, shape.num_ranks * matrix.rank_chunks());
    EXPECT_LE(matrix.slot_chunks * matrix.tile_size * kChunkRowBytes, slot_bytes_);
    ExpectInstructionsFindEveryValue(matrix, shape.num_blocks, slot_bytes_);
  }
}

TEST(ResidentInputTest, LanesFindTheInputOfTheirInstructionsSideBySide) {
  for (int t = 0; t < 4; ++t) {
    for (int idx = 0; idx < 4; ++idx) {
      const int value = 64 + 2 * t + 8 * idx;  // first of the pair, in the third 32 values
      EXPECT_EQ(InputPlace(value / 2), 32 + 4 * t + idx);
    }
  }
}

TEST(TiledMatrixTest, SlotsHaveRoomForTwoStripesAndPartsCoverAllRows) {
  for (const TileType format : {TileType::kU4F16, TileType::kS8Bf16}) {
    for (const bool gated : {false, true}) {
      for (const int rows : {16, 192, 512, 1536, 2560, 12288}) {
        for (const int in_dim : {64, 192, 1024, 1536, 10240}) {
          for (const int num_blocks : {1, 24, 132}) {
            constexpr int kSlotBytes = 14 * 1024;
            const ResidentMatrix matrix =
                PlanResidentMatrix(rows, in_dim, gated, num_blocks, kSlotBytes, format);
            ASSERT_LE(matrix.stripe_place() + matrix.slot_chunks * matrix.unit_bytes, kSlotBytes);
            ASSERT_GE(matrix.slot_chunks * matrix.tile_slots, in_dim / kChunkValues);
            int next = 0;
            for (int block = 0; block < num_blocks; ++block) {
              const MatrixPart part(matrix, block, num_blocks);
              ASSERT_EQ(part.first, next);
              ASSERT_EQ(part.count % 8, 0);
              ASSERT_LE(part.num_tiles(), matrix.most_tiles);
              next += part.count;
            }
            ASSERT_EQ(next, gated ? rows / 2 : rows);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lapidary::cuda
