// The attention kernel: a block of eight warps works through items, tile by tile of 32 keys.
//
// For every tile of keys (one contiguous entry per key, V and K in one go):
//   1. scores: the pairs (16 rows, 8 keys) are dealt out to the warps; a score is summed over the
//      even and the odd steps of 16 dims apart, then added;
//   2. the tile's row maxima meet in shared memory, P = 2^(score - maximum) goes there as bf16;
//   3. every warp adds P V for all rows and its own columns to the sums in its registers. The sum
//      of P itself is one more column, of ones.
// What happens to one row is the same chain of operations whatever the number of rows in the tile
// and wherever its first and last keys lie: tiles begin at multiples of 32, masked keys add exact
// zeros. The fixed roundings (__fmul_rn ...) keep the compiler from contracting it in two ways.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "model/kv_entry.h"
#include "ops/cuda/attention/attention_work.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/sm90.h"

namespace lapidary::cuda {

inline constexpr int kAttentionWarps = 8;
inline constexpr int kAttentionThreads = kAttentionWarps * 32;
inline constexpr int kCombineTiles = kAttentionCombineKeys / kAttentionKeyTile;

// How an entry lies in memory (KvEntryPlan), and what a block of its kernel may use.
template <int kValueLenValue, int kKeyOffsetValue, int kKeyLenValue, int kMaxRowTilesValue,
          int kBlocksPerSmValue>
struct AttentionForm {
  static constexpr int kValueLen = kValueLenValue;
  static constexpr int kKeyOffset = kKeyOffsetValue;
  static constexpr int kKeyLen = kKeyLenValue;
  static constexpr int kEntryLen = kKeyOffset + kKeyLen;
  static constexpr int kMaxRowTiles = kMaxRowTilesValue;  // of 16 rows
  static constexpr int kBlocksPerSm = kBlocksPerSmValue;
  static constexpr int kStateRows =
      kMaxRowTiles == 1 ? 32 : 128;  // that shared memory has room for
  static constexpr int kSharedBytes =
      kSm90SharedBytesPerSm / kBlocksPerSm - kSm90ReservedSharedBytes;

  // Where K is V, columns of values are dims in another order (kv_entry.h), in runs of 64.
  static constexpr bool kKeyIsValue = kKeyOffset < kValueLen;
  __device__ static int DimOf(int column) {
    return kKeyIsValue ? DimOfColumn(kValueLen, kKeyOffset / 2, column) : column;
  }

  static constexpr int kWarpColumns = kValueLen / kAttentionWarps;
  static constexpr int kSlotFloats = kAttentionPartialRows * (kValueLen + 2);
  // A block's running totals where pieces are combined: two maxima, two sums of P and the sums, of
  // every thread.
  static constexpr int kCombineTileFloats = kAttentionThreads * (4 + kWarpColumns / 8 * 4);
  static constexpr int kCombineFloats = kMaxRowTiles * kCombineTileFloats;
};

// Shared memory of an item of kRowTiles x 16 rows.
template <typename Form, int kRowTilesValue>
struct AttentionShape {
  static constexpr int kRowTiles = kRowTilesValue;
  static constexpr int kRows = kRowTiles * 16;
  // Score work: 4 blocks of 8 keys per row tile, kKeyBlocks of them per warp. With one row tile
  // half of the warps have none.
  static constexpr int kKeyBlocks = kRowTiles <= 2 ? 1 : kRowTiles / 2;
  static constexpr int kWarpsPerRowTile = 4 / kKeyBlocks;

  static constexpr int kStageBytes = kAttentionKeyTile * Form::kEntryLen * 2;
  static constexpr int kQueryBytes = kRows * Form::kKeyLen * 2;
  // A row of P is 64 bytes; with 80 from row to row eight rows lie in different banks.
  static constexpr int kWeightStride = 80;
  static constexpr int kWeightBytes = kRows * kWeightStride;
  static constexpr int kMaximaBytes = kRows * kWarpsPerRowTile * 4;
  // Two AttentionTasks, the rows' sums and running maxima (before and after a tile) lie before
  // everything else: an item may still read them while other warps begin the next one, which may
  // have another shape.
  static constexpr int kSumAt = 256;
  static constexpr int kRunningAt = kSumAt + Form::kStateRows * 4;
  static constexpr int kStageAt = kRunningAt + 2 * Form::kStateRows * 4;
  static_assert(kStageAt % 128 == 0 && kRows <= Form::kStateRows);
  static constexpr int kVisibleBytes = kRows * 8;
  static constexpr int kOtherBytes =
      kStageAt + kQueryBytes + kWeightBytes + kMaximaBytes + kVisibleBytes;
  static constexpr int kStagesThatFit = (Form::kSharedBytes - kOtherBytes) / kStageBytes;
  static constexpr int kStages = kStagesThatFit > 5 ? 5 : kStagesThatFit;
  static_assert(kStages >= 2);

  static constexpr int kQueryAt = kStageAt + kStages * kStageBytes;
  static constexpr int kWeightAt = kQueryAt + kQueryBytes;
  static constexpr int kMaximaAt = kWeightAt + kWeightBytes;
  static constexpr int kVisibleAt = kMaximaAt + kMaximaBytes;
  static_assert(kRows <= 128 && kVisibleAt + kVisibleBytes <= Form::kSharedBytes);
};

// The item in work, in shared memory to spare registers; items alternate between two of these.
struct AttentionTask {
  AttentionItem item;
  AttentionSequence sequence;
  int32_t is_last_split;
};
static_assert(sizeof(AttentionTask) <= 128);

struct AttentionParams {
  const __nv_bfloat16* queries;
  __nv_bfloat16* out;
  const std::byte* pool;
  int64_t page_bytes;
  int64_t layer_offset;
  const __nv_bfloat16* new_entries;
  const int32_t* page_ids;
  const AttentionSequence* sequences;
  const AttentionItem* items;
  const int32_t* num_items;
  float* combined_totals;  // null unless batch-invariant
  float* partials;
  int32_t* counters;
  int32_t tokens_per_page;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t heads_per_kv_head;
  int32_t window;
};

// Rows of shared memory are swizzled: 16-byte piece c of row r lies at c ^ (r % 8), so that eight
// rows' pieces c, and eight pieces of a row, lie in different banks. Rows are multiples of 128
// bytes.
__device__ __forceinline__ int Swizzled(int row, int piece) { return piece ^ (row & 7); }

// Two runs over disjoint keys joined: sums are weighed by `first` and `second`.
struct CombineWeights {
  float maximum;
  float first;
  float second;
};

__device__ __forceinline__ CombineWeights WeighCombine(float first_maximum, float second_maximum) {
  const float maximum = fmaxf(first_maximum, second_maximum);
  const float reference = maximum == -INFINITY ? 0.0f : maximum;
  return {maximum, Exp2(__fadd_rn(first_maximum, -reference)),
          Exp2(__fadd_rn(second_maximum, -reference))};
}

__device__ __forceinline__ float Combine(const CombineWeights& weights, float first, float second) {
  return __fmaf_rn(second, weights.second, __fmul_rn(first, weights.first));
}

// Loads tiles of keys into shared memory, in order. Lane l of every warp knows where key l of the
// tile lies; the page of the next tile's key is asked for one tile ahead.
template <typename Form>
class KeyLoader {
 public:
  __device__ KeyLoader(const AttentionParams& params, const AttentionTask& task)
      : params_(params),
        item_(task.item),
        sequence_(task.sequence),
        tile_(item_.key_begin / kAttentionKeyTile) {
    FindPage();
  }

  __device__ void LoadNext(uint32_t stage) {
    const int warp = Opaque(threadIdx.x) / 32;
    const int lane = Opaque(threadIdx.x) % 32;
    const int64_t source = reinterpret_cast<int64_t>(SourceOfLane());
    ++tile_;
    FindPage();
    constexpr int kPieces = Form::kEntryLen / 8;
    constexpr int kKeysPerWarp = kAttentionKeyTile / kAttentionWarps;
#pragma unroll
    for (int idx = 0; idx < kKeysPerWarp; ++idx) {
      const int key = warp * kKeysPerWarp + idx;
      const int64_t key_source = __shfl_sync(0xffffffff, source, key);
      const bool valid = key_source != 0;
      const std::byte* from = valid ? reinterpret_cast<const std::byte*>(key_source) : params_.pool;
      const uint32_t row = stage + key * (Form::kEntryLen * 2);
#pragma unroll
      for (int first = 0; first < kPieces; first += 32) {
        const int piece = first + lane;
        if (first + 32 <= kPieces || piece < kPieces) {
          CopyAsync(row + Swizzled(key, piece) * 16, from + piece * 16, valid);
        }
      }
    }
  }

 private:
  __device__ int KeyOfLane() const { return tile_ * kAttentionKeyTile + Opaque(threadIdx.x) % 32; }

  __device__ void FindPage() {
    const int key = KeyOfLane();
    page_ = 0;
    if (key >= item_.key_begin && key < item_.key_end && key < sequence_.num_cached) {
      page_ = params_.page_ids[sequence_.table_base + key / params_.tokens_per_page];
    }
  }

  // Null where the tile has no key of this item.
  __device__ const std::byte* SourceOfLane() const {
    const int key = KeyOfLane();
    if (key < item_.key_begin || key >= item_.key_end) return nullptr;
    if (key < sequence_.num_cached) {
      const int slot = key % params_.tokens_per_page;
      return params_.pool + page_ * params_.page_bytes + params_.layer_offset +
             (static_cast<int64_t>(item_.kv_head) * params_.tokens_per_page + slot) *
                 (Form::kEntryLen * 2);
    }
    const int64_t row = sequence_.first_new + (key - sequence_.num_cached);
    return reinterpret_cast<const std::byte*>(
        params_.new_entries + (row * params_.num_kv_heads + item_.kv_head) * Form::kEntryLen);
  }

  const AttentionParams& params_;
  const AttentionItem& item_;
  const AttentionSequence& sequence_;
  int tile_;
  int32_t page_ = 0;
};

// Starts the copy of the item's query rows; rows beyond them become zeros.
template <typename Form, typename Shape>
__device__ void LoadQueries(const AttentionParams& params, const AttentionTask& task, int num_rows,
                            uint32_t shared) {
  const AttentionItem& item = task.item;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  constexpr int kPieces = Form::kKeyLen / 8;
#pragma unroll 1
  for (int row = warp; row < Shape::kRows; row += kAttentionWarps) {
    const bool valid = row < num_rows;
    const int query = valid ? row / params.heads_per_kv_head : 0;
    const int head = valid ? row - query * params.heads_per_kv_head : 0;
    const int64_t query_row = task.sequence.first_query + item.query_begin + query;
    const __nv_bfloat16* from = params.queries + (query_row * params.num_heads +
                                                  item.kv_head * params.heads_per_kv_head + head) *
                                                     Form::kKeyLen;
    const uint32_t to = shared + row * (Form::kKeyLen * 2);
#pragma unroll
    for (int first = 0; first < kPieces; first += 32) {
      const int piece = first + lane;
      if (first + 32 <= kPieces || piece < kPieces) {
        CopyAsync(to + Swizzled(row, piece) * 16, from + piece * 8, valid);
      }
    }
  }
}

// Joins the splits of a tile in their order and writes the rows. A warp takes a row, so that a
// lane's columns share their weights and many loads are under way.
template <typename Form>
__device__ __noinline__ void MergeSplits(const AttentionParams& params, const AttentionTask& task) {
  constexpr int kQuads = Form::kValueLen / 128;  // groups of four columns per lane
  const AttentionItem& item = task.item;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int num_splits = item.num_splits;
  const int num_rows = item.num_queries * params.heads_per_kv_head;
  const int64_t split_floats = (num_rows + 15) / 16 * Form::kSlotFloats;
#pragma unroll 1
  for (int row = warp; row < num_rows; row += kAttentionWarps) {
    const float* slot =
        params.partials + static_cast<int64_t>(item.first_partial + row / 16) * Form::kSlotFloats;
    const float* tail = slot + kAttentionPartialRows * Form::kValueLen + row % 16;
    const float* quads = slot + row % 16 * Form::kValueLen + lane * 4;
    float maximum = -INFINITY;
    float sum = 0.0f;
    float4 total[kQuads];
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) total[quad] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int split = 0; split < num_splits; ++split) {
      const float split_maximum = __ldcg(tail);
      const float split_sum = __ldcg(tail + kAttentionPartialRows);
      float4 split_total[kQuads];
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        split_total[quad] = __ldcg(reinterpret_cast<const float4*>(quads + quad * 128));
      }
      const CombineWeights weights = WeighCombine(maximum, split_maximum);
      maximum = weights.maximum;
      sum = Combine(weights, sum, split_sum);
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        total[quad].x = Combine(weights, total[quad].x, split_total[quad].x);
        total[quad].y = Combine(weights, total[quad].y, split_total[quad].y);
        total[quad].z = Combine(weights, total[quad].z, split_total[quad].z);
        total[quad].w = Combine(weights, total[quad].w, split_total[quad].w);
      }
      tail += split_floats;
      quads += split_floats;
    }
    const float inverse = __frcp_rn(sum);
    const int query = row / params.heads_per_kv_head;
    const int64_t query_row = task.sequence.first_query + item.query_begin + query;
    const int64_t head =
        item.kv_head * params.heads_per_kv_head + row - query * params.heads_per_kv_head;
    __nv_bfloat16* out = params.out + (query_row * params.num_heads + head) * Form::kValueLen;
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      __nv_bfloat162* const at =
          reinterpret_cast<__nv_bfloat162*>(out + Form::DimOf(quad * 128 + lane * 4));
      at[0] = __floats2bfloat162_rn(__fmul_rn(total[quad].x, inverse),
                                    __fmul_rn(total[quad].y, inverse));
      at[1] = __floats2bfloat162_rn(__fmul_rn(total[quad].z, inverse),
                                    __fmul_rn(total[quad].w, inverse));
    }
  }
}

template <typename Form, int kRowTiles>
__device__ __forceinline__ void RunAttentionItem(const AttentionParams& params, AttentionTask& task,
                                                 bool is_first, unsigned char* shared_bytes) {
  const AttentionItem& item = task.item;
  const AttentionSequence& sequence = task.sequence;
  using Shape = AttentionShape<Form, kRowTiles>;
  constexpr int kColumnBlocks = Form::kWarpColumns / 8;
  constexpr float kLog2e = 1.4426950408889634f;
  // Opaque, so that what follows from it is not kept in registers for the other shapes' sake.
  const int thread = Opaque(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int lane_row = lane / 4;  // of the fragments of a product's result, and 8 below
  const int lane_column = lane % 4 * 2;
  const int num_rows = item.num_queries * params.heads_per_kv_head;

  const uint32_t shared = SharedAddress(shared_bytes);
  float* const maxima = reinterpret_cast<float*>(shared_bytes + Shape::kMaximaAt);
  int2* const visible_keys = reinterpret_cast<int2*>(shared_bytes + Shape::kVisibleAt);
  float* const sums = reinterpret_cast<float*>(shared_bytes + Shape::kSumAt);
  // Of all keys before a tile and up to it; they change places after each tile.
  float* running_before = reinterpret_cast<float*>(shared_bytes + Shape::kRunningAt);
  float* running = running_before + Form::kStateRows;

  // Row `thread` sees the keys [x, y) of this item.
  if (thread < Shape::kRows) {
    const int position =
        sequence.first_position + item.query_begin + thread / params.heads_per_kv_head;
    visible_keys[thread] = make_int2(
        params.window > 0 ? max(item.key_begin, position - params.window + 1) : item.key_begin,
        thread < num_rows ? min(item.key_end, position + 1) : 0);
  }

  // The rows and keys whose scores this warp computes.
  const int score_tile = warp / Shape::kWarpsPerRowTile;
  const int score_part = warp % Shape::kWarpsPerRowTile;
  const bool has_scores = score_tile < kRowTiles;

  // The addresses of this lane's rows of matrices (warp_mma.cuh). A row's address is a multiple of
  // 128 and its swizzle is lane % 8, so the piece 2 i further is one "exclusive or" away: (at + i).
  const uint32_t wide_piece = Swizzled(lane, lane / 16) * 16;   // 16 rows, 2 pieces
  const uint32_t narrow_piece = Swizzled(lane, lane / 8) * 16;  // 8 rows, 4 pieces
  const uint32_t query_at = shared + Shape::kQueryAt +
                            ((has_scores ? score_tile * 16 : 0) + lane % 16) * (Form::kKeyLen * 2) +
                            wide_piece;
  const uint32_t key_offset =
      (score_part * Shape::kKeyBlocks * 8 + lane % 8) * (Form::kEntryLen * 2) +
      Form::kKeyOffset * 2 + narrow_piece;
  // This warp's columns begin at a multiple of 128 bytes, or 64 bytes behind one.
  const uint32_t value_offset = lane % 16 * (Form::kEntryLen * 2) +
                                warp * Form::kWarpColumns * 2 / 128 * 128 +
                                (wide_piece ^ (warp * Form::kWarpColumns * 2 % 128));

  float total[kRowTiles][kColumnBlocks][4];
  float total_of_ones[4];  // of row tile `warp`, where there is one
  bool is_fresh;           // no tile is in the sums yet; running maxima are to be taken as -inf
  const auto clear = [&] {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int idx = 0; idx < 4; ++idx) total[tile][block][idx] = 0.0f;
      }
    }
#pragma unroll
    for (int idx = 0; idx < 4; ++idx) total_of_ones[idx] = 0.0f;
    is_fresh = true;
  };
  clear();

  // Joins what was summed up so far with the block's running totals (after what is in memory, if
  // any). Every thread reads back what it wrote itself.
  bool has_combined = false;
  float* const combined =
      params.combined_totals + static_cast<int64_t>(blockIdx.x) * Form::kCombineFloats;
  const auto combine_in = [&](bool keep_in_memory) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      float* const at = combined + tile * Form::kCombineTileFloats + thread;
      CombineWeights weights[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* const maximum_at = at + half * kAttentionThreads;
        weights[half] = WeighCombine(has_combined ? *maximum_at : -INFINITY,
                                     running[tile * 16 + half * 8 + lane_row]);
        if (keep_in_memory) *maximum_at = weights[half].maximum;
        if (warp == tile) {
          float* const ones_at = at + (half + 2) * kAttentionThreads;
          total_of_ones[half * 2] =
              Combine(weights[half], has_combined ? *ones_at : 0.0f, total_of_ones[half * 2]);
          if (keep_in_memory) *ones_at = total_of_ones[half * 2];
        }
      }
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int idx = 0; idx < 4; ++idx) {
          float* const total_at = at + (4 + block * 4 + idx) * kAttentionThreads;
          total[tile][block][idx] =
              Combine(weights[idx / 2], has_combined ? *total_at : 0.0f, total[tile][block][idx]);
          if (keep_in_memory) *total_at = total[tile][block][idx];
        }
      }
    }
    has_combined = true;
  };

  const int first_tile = item.key_begin / kAttentionKeyTile;
  const int end_tile = (item.key_end + kAttentionKeyTile - 1) / kAttentionKeyTile;
  KeyLoader<Form> loader(params, task);
  const auto load_stage = [&](int stage) {
    if (first_tile + stage < end_tile) {
      loader.LoadNext(shared + Shape::kStageAt + stage * Shape::kStageBytes);
    }
  };
  if (is_first) {
    // Cached keys were there before the step began: they are on their way while the kernel that
    // makes the queries still runs. All copies of the prologue are one group.
    int stage = 0;
    const int end_cached_tile = task.sequence.num_cached / kAttentionKeyTile;
#pragma unroll 1
    for (; stage < Shape::kStages - 1 && first_tile + stage < end_cached_tile; ++stage) {
      load_stage(stage);
    }
    WaitForPreviousKernel();
    LoadQueries<Form, Shape>(params, task, num_rows, shared + Shape::kQueryAt);
#pragma unroll 1
    for (; stage < Shape::kStages - 1; ++stage) load_stage(stage);
    CommitCopies();
#pragma unroll 1
    for (int empty = 0; empty < Shape::kStages - 2; ++empty) CommitCopies();
  } else {
    LoadQueries<Form, Shape>(params, task, num_rows, shared + Shape::kQueryAt);
#pragma unroll 1
    for (int stage = 0; stage < Shape::kStages - 1; ++stage) {
      load_stage(stage);
      CommitCopies();
    }
  }

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

    // 1. Scores of 16 rows against kKeyBlocks x 8 keys, in units of log 2.
    float scores[Shape::kKeyBlocks][4];
    if (has_scores) {
      float even[Shape::kKeyBlocks][4] = {};
      float odd[Shape::kKeyBlocks][4] = {};
      const uint32_t key_at = entries + key_offset;
#pragma unroll
      for (int dim = 0; dim < Form::kKeyLen; dim += 32) {
        uint32_t first_queries[4];
        uint32_t second_queries[4];
        const int within = dim % 64 * 2;
        const int whole = dim / 64 * 128;
        LoadMatrices(first_queries, (query_at ^ within) + whole);
        LoadMatrices(second_queries, (query_at ^ (within + 32)) + whole);
#pragma unroll
        for (int block = 0; block < Shape::kKeyBlocks; ++block) {
          uint32_t keys[4];
          LoadMatrices(keys, (key_at ^ within) + whole + block * 8 * (Form::kEntryLen * 2));
          Mma(even[block], first_queries, keys[0], keys[1]);
          Mma(odd[block], second_queries, keys[2], keys[3]);
        }
      }
      float tile_maximum[2] = {-INFINITY, -INFINITY};
      const int2 visible[2] = {visible_keys[score_tile * 16 + lane_row],
                               visible_keys[score_tile * 16 + lane_row + 8]};
#pragma unroll
      for (int block = 0; block < Shape::kKeyBlocks; ++block) {
#pragma unroll
        for (int idx = 0; idx < 4; ++idx) {
          const int key = tile * kAttentionKeyTile + (score_part * Shape::kKeyBlocks + block) * 8 +
                          lane_column + idx % 2;
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
        if (lane % 4 == 0) {
          const int row = score_tile * 16 + half * 8 + lane_row;
          maxima[row * Shape::kWarpsPerRowTile + score_part] = tile_maximum[half];
        }
      }
    }
    __syncthreads();

    // 2. Weights, against the maximum of all keys so far.
    const auto maximum_before = [&](int row) { return is_fresh ? -INFINITY : running_before[row]; };
    const auto maximum_now = [&](int row) {
      float found = maximum_before(row);
#pragma unroll
      for (int part = 0; part < Shape::kWarpsPerRowTile; ++part) {
        found = fmaxf(found, maxima[row * Shape::kWarpsPerRowTile + part]);
      }
      return found;
    };
    if (has_scores) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = score_tile * 16 + half * 8 + lane_row;
        const float now = maximum_now(row);
        if (score_part == 0 && lane % 4 == 0) running[row] = now;
        const float reference = now == -INFINITY ? 0.0f : now;
#pragma unroll
        for (int block = 0; block < Shape::kKeyBlocks; ++block) {
          const __nv_bfloat162 weights =
              __floats2bfloat162_rn(Exp2(__fadd_rn(scores[block][half * 2], -reference)),
                                    Exp2(__fadd_rn(scores[block][half * 2 + 1], -reference)));
          const int column = (score_part * Shape::kKeyBlocks + block) * 8 + lane_column;
          *reinterpret_cast<__nv_bfloat162*>(shared_bytes + Shape::kWeightAt +
                                             row * Shape::kWeightStride + column * 2) = weights;
        }
      }
    }
#pragma unroll
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      float shrink[2];
      bool shrinks = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_tile * 16 + half * 8 + lane_row;
        const float before = maximum_before(row);
        const float now = maximum_now(row);
        shrinks |= now > before;
        shrink[half] = __fadd_rn(before, now == -INFINITY ? 0.0f : -now);
      }
      // Where no maximum moved the factors are all 1 (or the sums still 0).
      if (__any_sync(0xffffffff, shrinks)) {
        const float factor[2] = {Exp2(shrink[0]), Exp2(shrink[1])};
#pragma unroll
        for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
          for (int idx = 0; idx < 4; ++idx) total[row_tile][block][idx] *= factor[idx / 2];
        }
        if (warp == row_tile) {
#pragma unroll
          for (int idx = 0; idx < 4; ++idx) total_of_ones[idx] *= factor[idx / 2];
        }
      }
    }
    __syncthreads();

    // 3. Weights times values, for all rows and this warp's columns.
#pragma unroll
    for (int step = 0; step < kAttentionKeyTile / 16; ++step) {
      uint32_t weights[kRowTiles][4];
#pragma unroll
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        LoadMatrices(weights[row_tile], shared + Shape::kWeightAt +
                                            (row_tile * 16 + lane % 16) * Shape::kWeightStride +
                                            step * 32 + lane / 16 * 16);
        constexpr uint32_t kOnes = 0x3f803f80;
        if (warp == row_tile) Mma(total_of_ones, weights[row_tile], kOnes, kOnes);
      }
      const uint32_t value_at = entries + value_offset;
#pragma unroll
      for (int block = 0; block < kColumnBlocks; block += 2) {
        uint32_t values[4];
        LoadMatricesTransposed(values,
                               (value_at ^ (block * 16)) + step * 16 * (Form::kEntryLen * 2));
#pragma unroll
        for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
          Mma(total[row_tile][block], weights[row_tile], values[0], values[1]);
          Mma(total[row_tile][block + 1], weights[row_tile], values[2], values[3]);
        }
      }
    }

    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    free_stage = free_stage + 1 == Shape::kStages ? 0 : free_stage + 1;
    is_fresh = false;
    const bool is_last_tile = tile + 1 == end_tile;
    if (params.combined_totals != nullptr &&
        (is_last_tile ? has_combined : (tile + 1) % kCombineTiles == 0)) {
      combine_in(!is_last_tile);
      if (!is_last_tile) clear();
    }
    float* const other = running;
    running = running_before;
    running_before = other;
  }

#pragma unroll
  for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
    if (warp == row_tile && lane % 4 == 0) {
      sums[row_tile * 16 + lane_row] = total_of_ones[0];
      sums[row_tile * 16 + lane_row + 8] = total_of_ones[2];
    }
  }
  // After this shared memory is free for the next item, but for `sums` and the flag, which that one
  // writes behind more barriers.
  __syncthreads();

  if (item.num_splits == 1) {
#pragma unroll
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_tile * 16 + half * 8 + lane_row;
        if (row < num_rows) {
          const float inverse = __frcp_rn(sums[row]);
          const int query = row / params.heads_per_kv_head;
          const int64_t out_row = sequence.first_query + item.query_begin + query;
          const int64_t head =
              item.kv_head * params.heads_per_kv_head + row - query * params.heads_per_kv_head;
          __nv_bfloat16* out = params.out + (out_row * params.num_heads + head) * Form::kValueLen +
                               Form::DimOf(warp * Form::kWarpColumns) + lane_column;
#pragma unroll
          for (int block = 0; block < kColumnBlocks; ++block) {
            *reinterpret_cast<__nv_bfloat162*>(out + block * 8) =
                __floats2bfloat162_rn(__fmul_rn(total[row_tile][block][half * 2], inverse),
                                      __fmul_rn(total[row_tile][block][half * 2 + 1], inverse));
          }
        }
      }
    }
    return;
  }

  const int row_tiles = (num_rows + 15) / 16;
#pragma unroll
  for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
    float* const slot = params.partials + static_cast<int64_t>(item.first_partial +
                                                               item.split * row_tiles + row_tile) *
                                              Form::kSlotFloats;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane_row;
      if (row_tile * 16 + row < num_rows) {
        float* const at = slot + row * Form::kValueLen + warp * Form::kWarpColumns + lane_column;
#pragma unroll
        for (int block = 0; block < kColumnBlocks; ++block) {
          *reinterpret_cast<float2*>(at + block * 8) =
              make_float2(total[row_tile][block][half * 2], total[row_tile][block][half * 2 + 1]);
        }
        if (warp == 0 && lane % 4 == 0) {
          float* const tail = slot + kAttentionPartialRows * Form::kValueLen + row;
          tail[0] = running_before[row_tile * 16 + row];  // an item of a split tile never combines
          tail[kAttentionPartialRows] = sums[row_tile * 16 + row];
        }
      }
    }
  }
  // Whoever arrives last sees all splits and joins them.
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    const int32_t before = atomicAdd(params.counters + item.first_partial, 1);
    task.is_last_split = before == item.num_splits - 1;
  }
  __syncthreads();
  if (task.is_last_split == 0) return;
  __threadfence();
  MergeSplits<Form>(params, task);
  if (thread == 0) params.counters[item.first_partial] = 0;
}

}  // namespace lapidary::cuda
