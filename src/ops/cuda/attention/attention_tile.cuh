// One tile of keys: scores, weights, and the weights times the values (attention_kernel.cuh).
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/attention_form.cuh"
#include "ops/cuda/attention/attention_load.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"

namespace lapidary::cuda {

// A thread's part in the products of an item.
template <typename Shape>
struct AttentionLane {
  using Form = typename Shape::Form;

  int thread;
  int warp;
  int lane;
  int row;  // of the fragments of a product's result, and 8 below
  int column;

  // The rows and keys whose scores this warp computes.
  int score_tile;
  int score_part;
  bool has_scores;

  // The addresses of this lane's rows of matrices (warp_mma.cuh), of keys and values within a
  // stage. A row's address is a multiple of 128 and its swizzle is lane % 8, so the piece 2 i
  // further is one "exclusive or" away: (at + i).
  uint32_t query_at;
  uint32_t key_offset;
  uint32_t value_offset;

  __device__ __forceinline__ AttentionLane(int thread, uint32_t shared)
      : thread(thread),
        warp(thread / 32),
        lane(thread % 32),
        row(lane / 4),
        column(lane % 4 * 2),
        score_tile(warp / Shape::kWarpsPerRowTile),
        score_part(warp % Shape::kWarpsPerRowTile),
        has_scores(score_tile < Shape::kRowTiles) {
    const uint32_t wide_piece = Swizzled(lane, lane / 16) * 16;   // 16 rows, 2 pieces
    const uint32_t narrow_piece = Swizzled(lane, lane / 8) * 16;  // 8 rows, 4 pieces
    query_at = shared + Shape::kQueryAt +
               ((has_scores ? score_tile * 16 : 0) + lane % 16) * (Form::kKeyLen * 2) + wide_piece;
    key_offset = (score_part * Shape::kKeyBlocks * 8 + lane % 8) * (Form::kEntryLen * 2) +
                 Form::kKeyOffset * 2 + narrow_piece;
    // This warp's columns begin at a multiple of 128 bytes, or 64 bytes behind one.
    value_offset = lane % 16 * (Form::kEntryLen * 2) + warp * Form::kWarpColumns * 2 / 128 * 128 +
                   (wide_piece ^ (warp * Form::kWarpColumns * 2 % 128));
  }
};

// Sums of P V in a warp's registers: all rows, the warp's columns, as fragments of results.
template <typename Shape>
using RowSums = float[Shape::kRowTiles][Shape::kColumnBlocks][4];
// Scores in a warp's registers, of 16 rows and its keys of a tile.
template <typename Shape>
using TileScores = float[Shape::kKeyBlocks][4];

// The rows' maxima, in shared memory.
template <typename Shape>
struct RowMaxima {
  const float* of_tile;  // [rows, warps of a row tile]
  // Of all keys before a tile and up to it; they change places after each tile. While `is_fresh`
  // no tile is in the sums yet and what lies in `before` counts for nothing.
  float* before;
  float* now;
  bool is_fresh;

  __device__ __forceinline__ float Before(int row) const {
    return is_fresh ? -INFINITY : before[row];
  }
  __device__ __forceinline__ float Now(int row) const {
    float found = Before(row);
#pragma unroll
    for (int part = 0; part < Shape::kWarpsPerRowTile; ++part) {
      found = fmaxf(found, of_tile[row * Shape::kWarpsPerRowTile + part]);
    }
    return found;
  }
};

template <typename Shape>
__device__ __forceinline__ void ClearSums(RowSums<Shape>& total, float (&total_of_ones)[4]) {
#pragma unroll
  for (int tile = 0; tile < Shape::kRowTiles; ++tile) {
#pragma unroll
    for (int block = 0; block < Shape::kColumnBlocks; ++block) {
#pragma unroll
      for (int idx = 0; idx < 4; ++idx) total[tile][block][idx] = 0.0f;
    }
  }
#pragma unroll
  for (int idx = 0; idx < 4; ++idx) total_of_ones[idx] = 0.0f;
}

// The products of 16 query rows with this warp's kKeyBlocks x 8 keys, the even and the odd steps of
// 16 dims apart.
template <typename Shape>
__device__ __forceinline__ void MultiplyKeys(const AttentionLane<Shape>& at, uint32_t entries,
                                             TileScores<Shape>& even, TileScores<Shape>& odd) {
  using Form = typename Shape::Form;
  const uint32_t key_at = entries + at.key_offset;
#pragma unroll
  for (int dim = 0; dim < Form::kKeyLen; dim += 32) {
    uint32_t first_queries[4];
    uint32_t second_queries[4];
    const int within = dim % 64 * 2;
    const int whole = dim / 64 * 128;
    LoadMatrices(first_queries, (at.query_at ^ within) + whole);
    LoadMatrices(second_queries, (at.query_at ^ (within + 32)) + whole);
#pragma unroll
    for (int block = 0; block < Shape::kKeyBlocks; ++block) {
      uint32_t keys[4];
      LoadMatrices(keys, (key_at ^ within) + whole + block * 8 * (Form::kEntryLen * 2));
      Mma(even[block], first_queries, keys[0], keys[1]);
      Mma(odd[block], second_queries, keys[2], keys[3]);
    }
  }
}

// Scores in units of log 2, -inf where a row does not see the key: it sees the keys [x, y) of its
// `visible_keys`. Their row maxima go to `maxima` [rows, warps of a row tile].
template <typename Shape>
__device__ __forceinline__ void ComputeScores(const AttentionLane<Shape>& at, uint32_t entries,
                                              int tile, const int2* visible_keys, float* maxima,
                                              TileScores<Shape>& scores) {
  constexpr float kLog2e = 1.4426950408889634f;
  float even[Shape::kKeyBlocks][4] = {};
  float odd[Shape::kKeyBlocks][4] = {};
  MultiplyKeys<Shape>(at, entries, even, odd);
  float tile_maximum[2] = {-INFINITY, -INFINITY};
  const int2 visible[2] = {visible_keys[at.score_tile * 16 + at.row],
                           visible_keys[at.score_tile * 16 + at.row + 8]};
#pragma unroll
  for (int block = 0; block < Shape::kKeyBlocks; ++block) {
#pragma unroll
    for (int idx = 0; idx < 4; ++idx) {
      const int key = tile * kAttentionKeyTile + (at.score_part * Shape::kKeyBlocks + block) * 8 +
                      at.column + idx % 2;
      const int half = idx / 2;
      const float score = __fmul_rn(__fadd_rn(even[block][idx], odd[block][idx]), kLog2e);
      const bool is_visible = key >= visible[half].x && key < visible[half].y;
      scores[block][idx] = is_visible ? score : -INFINITY;
      tile_maximum[half] = fmaxf(tile_maximum[half], scores[block][idx]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    tile_maximum[half] =
        fmaxf(tile_maximum[half], __shfl_xor_sync(0xffffffff, tile_maximum[half], 1));
    tile_maximum[half] =
        fmaxf(tile_maximum[half], __shfl_xor_sync(0xffffffff, tile_maximum[half], 2));
    if (at.lane % 4 == 0) {
      const int row = at.score_tile * 16 + half * 8 + at.row;
      maxima[row * Shape::kWarpsPerRowTile + at.score_part] = tile_maximum[half];
    }
  }
}

// P of this warp's scores, against the maximum of all keys so far, as bf16 [rows, 32 keys] with
// kWeightStride from row to row; that maximum goes to maxima.now.
template <typename Shape>
__device__ __forceinline__ void StoreWeights(const AttentionLane<Shape>& at,
                                             const TileScores<Shape>& scores,
                                             const RowMaxima<Shape>& maxima,
                                             unsigned char* weights_at) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = at.score_tile * 16 + half * 8 + at.row;
    const float now = maxima.Now(row);
    if (at.score_part == 0 && at.lane % 4 == 0) maxima.now[row] = now;
    const float reference = now == -INFINITY ? 0.0f : now;
#pragma unroll
    for (int block = 0; block < Shape::kKeyBlocks; ++block) {
      const __nv_bfloat162 weights =
          __floats2bfloat162_rn(Exp2(__fadd_rn(scores[block][half * 2], -reference)),
                                Exp2(__fadd_rn(scores[block][half * 2 + 1], -reference)));
      const int column = (at.score_part * Shape::kKeyBlocks + block) * 8 + at.column;
      *reinterpret_cast<__nv_bfloat162*>(weights_at + row * Shape::kWeightStride + column * 2) =
          weights;
    }
  }
}

// The sums of the tiles before, from the maxima before this tile to those up to it.
template <typename Shape>
__device__ __forceinline__ void ShrinkSums(const AttentionLane<Shape>& at,
                                           const RowMaxima<Shape>& maxima, RowSums<Shape>& total,
                                           float (&total_of_ones)[4]) {
#pragma unroll
  for (int row_tile = 0; row_tile < Shape::kRowTiles; ++row_tile) {
    float shrink[2];
    bool shrinks = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_tile * 16 + half * 8 + at.row;
      const float before = maxima.Before(row);
      const float now = maxima.Now(row);
      shrinks |= now > before;
      shrink[half] = __fadd_rn(before, now == -INFINITY ? 0.0f : -now);
    }
    // Where no maximum moved the factors are all 1 (or the sums still 0).
    if (__any_sync(0xffffffff, shrinks)) {
      const float factor[2] = {Exp2(shrink[0]), Exp2(shrink[1])};
#pragma unroll
      for (int block = 0; block < Shape::kColumnBlocks; ++block) {
#pragma unroll
        for (int idx = 0; idx < 4; ++idx) total[row_tile][block][idx] *= factor[idx / 2];
      }
      if (at.warp == row_tile) {
#pragma unroll
        for (int idx = 0; idx < 4; ++idx) total_of_ones[idx] *= factor[idx / 2];
      }
    }
  }
}

// Weights times values, for all rows and this warp's columns.
template <typename Shape>
__device__ __forceinline__ void AddValues(const AttentionLane<Shape>& at, uint32_t entries,
                                          uint32_t weights_at, RowSums<Shape>& total,
                                          float (&total_of_ones)[4]) {
  using Form = typename Shape::Form;
#pragma unroll
  for (int step = 0; step < kAttentionKeyTile / 16; ++step) {
    uint32_t weights[Shape::kRowTiles][4];
#pragma unroll
    for (int row_tile = 0; row_tile < Shape::kRowTiles; ++row_tile) {
      LoadMatrices(weights[row_tile], weights_at +
                                          (row_tile * 16 + at.lane % 16) * Shape::kWeightStride +
                                          step * 32 + at.lane / 16 * 16);
      constexpr uint32_t kOnes = 0x3f803f80;
      if (at.warp == row_tile) Mma(total_of_ones, weights[row_tile], kOnes, kOnes);
    }
    const uint32_t value_at = entries + at.value_offset;
#pragma unroll
    for (int block = 0; block < Shape::kColumnBlocks; block += 2) {
      uint32_t values[4];
      LoadMatricesTransposed(values, (value_at ^ (block * 16)) + step * 16 * (Form::kEntryLen * 2));
#pragma unroll
      for (int row_tile = 0; row_tile < Shape::kRowTiles; ++row_tile) {
        Mma(total[row_tile][block], weights[row_tile], values[0], values[1]);
        Mma(total[row_tile][block + 1], weights[row_tile], values[2], values[3]);
      }
    }
  }
}

}  // namespace lapidary::cuda
