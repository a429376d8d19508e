// The attention kernel: a block of eight warps works through items, tile by tile of 32 keys.
//
// For every tile of keys (one contiguous entry per key, V and K in one go):
//   1. scores: the pairs (16 rows, 8 keys) are dealt out to the warps; a score is summed over the
//      even and the odd steps of 16 dims apart, then added;
//   2. weights: the tile's row maxima meet in shared memory, P = 2^(score - maximum) goes there as
//      bf16;
//   3. values: every warp adds P V for all rows and its own columns to the sums in its registers.
//      The sum of P itself is one more column, of ones.
// What happens to one row is the same chain of operations whatever the number of rows in the tile
// and wherever its first and last keys lie: tiles begin at multiples of 32, masked keys add exact
// zeros. The fixed roundings (__fmul_rn ...) keep the compiler from contracting it in two ways.
//
// The parts are free functions over arrays of registers, all inlined: as members of one class they
// cost 96 to 208 bytes of stack.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/attention_combine.cuh"
#include "ops/cuda/attention/attention_form.cuh"
#include "ops/cuda/attention/attention_load.cuh"
#include "ops/cuda/attention/attention_store.cuh"
#include "ops/cuda/attention/attention_tile.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"

namespace lapidary::cuda {

inline constexpr int kCombineTiles = kAttentionCombineKeys / kAttentionKeyTile;

// Row `row` of the item sees the keys [x, y); one beyond its num_rows sees none.
__device__ __forceinline__ int2 KeysOfRow(const AttentionParams& params, const AttentionTask& task,
                                          int num_rows, int row) {
  const AttentionItem& item = task.item;
  const int query = item.query_begin + row / params.heads_per_kv_head;
  const int position = task.sequence.first_position + query;
  const int key_begin =
      params.window > 0 ? max(item.key_begin, position - params.window + 1) : item.key_begin;
  if (row >= num_rows) return make_int2(key_begin, 0);
  return make_int2(key_begin,
                   min(item.key_end, params.KeyEnd(task.sequence.first_query + query, position)));
}

template <typename Form, int kRowTiles>
__device__ __forceinline__ void RunAttentionItem(const AttentionParams& params, AttentionTask& task,
                                                 bool is_first, unsigned char* shared_bytes) {
  using Shape = AttentionShape<Form, kRowTiles>;
  const AttentionItem& item = task.item;
  const int num_rows = item.num_queries * params.heads_per_kv_head;
  const uint32_t shared = SharedAddress(shared_bytes);
  // Opaque, so that what follows from it is not kept in registers for the other shapes' sake.
  const AttentionLane<Shape> lane(Opaque(threadIdx.x), shared);

  float* const sums = reinterpret_cast<float*>(shared_bytes + Shape::kSumAt);
  float* const tile_maxima = reinterpret_cast<float*>(shared_bytes + Shape::kMaximaAt);
  float* const running = reinterpret_cast<float*>(shared_bytes + Shape::kRunningAt);
  RowMaxima<Shape> maxima = {.of_tile = tile_maxima,
                             .before = running,
                             .now = running + Form::kStateRows,
                             .is_fresh = true};
  int2* const visible_keys = reinterpret_cast<int2*>(shared_bytes + Shape::kVisibleAt);
  if (lane.thread < Shape::kRows) {
    visible_keys[lane.thread] = KeysOfRow(params, task, num_rows, lane.thread);
  }

  RowSums<Shape> total;
  float total_of_ones[4];  // of row tile `warp`, where there is one
  ClearSums<Shape>(total, total_of_ones);
  bool has_combined = false;
  float* const combined =
      params.combined_totals + static_cast<int64_t>(blockIdx.x) * Form::kCombineFloats;

  const int first_tile = item.key_begin / kAttentionKeyTile;
  const int end_tile = (item.key_end + kAttentionKeyTile - 1) / kAttentionKeyTile;
  KeyLoader<Form> loader(params, task);
  StartCopies<Shape>(params, task, is_first, num_rows, first_tile, end_tile, shared, loader);
  int stage = 0;
  int free_stage = Shape::kStages - 1;
#pragma unroll 1
  for (int tile = first_tile; tile < end_tile; ++tile) {
    WaitForCopies<Shape::kStages - 2>();
    // This tile is here for all threads, and all are done with the tile before and its weights.
    __syncthreads();
    if (tile + Shape::kStages - 1 < end_tile) {
      loader.LoadNext(shared + Shape::kStageAt + free_stage * Shape::kStageBytes);
    }
    CommitCopies();
    const uint32_t entries = shared + Shape::kStageAt + stage * Shape::kStageBytes;

    // 1. Scores.
    TileScores<Shape> scores;
    if (lane.has_scores) {
      ComputeScores<Shape>(lane, entries, tile, visible_keys, tile_maxima, scores);
    }
    __syncthreads();
    // 2. Weights, against the maximum of all keys so far; what was summed before follows it.
    if (lane.has_scores) {
      StoreWeights<Shape>(lane, scores, maxima, shared_bytes + Shape::kWeightAt);
    }
    ShrinkSums<Shape>(lane, maxima, total, total_of_ones);
    __syncthreads();
    // 3. Values.
    AddValues<Shape>(lane, entries, shared + Shape::kWeightAt, total, total_of_ones);

    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    free_stage = free_stage + 1 == Shape::kStages ? 0 : free_stage + 1;
    maxima.is_fresh = false;
    const bool is_last_tile = tile + 1 == end_tile;
    if (params.combined_totals != nullptr &&
        (is_last_tile ? has_combined : (tile + 1) % kCombineTiles == 0)) {
      CombineTotals<Shape>(lane, combined, maxima.now, has_combined, !is_last_tile, total,
                           total_of_ones);
      has_combined = true;
      if (!is_last_tile) {
        ClearSums<Shape>(total, total_of_ones);
        maxima.is_fresh = true;
      }
    }
    float* const other = maxima.now;
    maxima.now = maxima.before;
    maxima.before = other;
  }

#pragma unroll
  for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
    if (lane.warp == row_tile && lane.lane % 4 == 0) {
      sums[row_tile * 16 + lane.row] = total_of_ones[0];
      sums[row_tile * 16 + lane.row + 8] = total_of_ones[2];
    }
  }
  // After this shared memory is free for the next item, but for `sums` and the flag, which that one
  // writes behind more barriers.
  __syncthreads();
  if (item.num_splits == 1) {
    StoreRows<Shape>(params, task, lane, num_rows, sums, total);
    return;
  }
  // An item of a split tile never combines: these are the maxima of all its keys.
  StorePartials<Shape>(params, item, lane, num_rows, maxima.before, sums, total);
  FinishSplit<Form>(params, task, lane.thread);
}

}  // namespace lapidary::cuda
