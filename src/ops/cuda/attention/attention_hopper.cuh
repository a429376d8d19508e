// What the attention kernels for Hopper share: where an item's rows and keys lie, the softmax of
// scores in registers, and how warpgroups store their sums.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/attention_combine.cuh"
#include "ops/cuda/attention/attention_form.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/tma.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {

// One item. Its rows are (query, head) pairs; tiles of keys begin at its first key.
struct HopperItem {
  AttentionItem item;
  AttentionSequence sequence;

  __device__ HopperItem(const AttentionParams& params, int idx)
      : HopperItem(params, params.items[idx]) {}
  __device__ HopperItem(const AttentionParams& params, const AttentionItem& item)
      : item(item), sequence(params.sequences[item.sequence]) {}

  __device__ int num_rows(const AttentionParams& params) const {
    return item.num_queries * params.heads_per_kv_head;
  }
  __device__ int num_tiles(int keys) const {
    return (item.key_end - item.key_begin + keys - 1) / keys;
  }
  // Row of queries or outputs, [rows, heads]; the item's row must exist.
  __device__ int64_t HeadRow(const AttentionParams& params, int row) const {
    // Decoding, nothing need be divided.
    const int query = item.num_queries == 1 ? 0 : row / params.heads_per_kv_head;
    const int64_t query_row = sequence.first_query + item.query_begin + query;
    return query_row * params.num_heads + item.kv_head * params.heads_per_kv_head + row -
           query * params.heads_per_kv_head;
  }

  // The page of a cached key; any number where there is none.
  __device__ int32_t PageOf(const AttentionParams& params, int key) const {
    if (key >= item.key_end || key >= sequence.num_cached) return 0;
    return params.page_ids[sequence.table_base + key / params.tokens_per_page];
  }
  // The address of a key's entry; 0 behind the item's last key.
  __device__ int64_t EntryAt(const AttentionParams& params, int key, int32_t page,
                             int entry_len) const {
    if (key >= item.key_end) return 0;
    if (key < sequence.num_cached) {
      const int slot = key % params.tokens_per_page;
      return reinterpret_cast<int64_t>(params.pool + page * params.page_bytes +
                                       params.layer_offset) +
             (int64_t{item.kv_head} * params.tokens_per_page + slot) * (entry_len * 2);
    }
    const int64_t row = sequence.first_new + (key - sequence.num_cached);
    return reinterpret_cast<int64_t>(params.new_entries +
                                     (row * params.num_kv_heads + item.kv_head) * entry_len);
  }
};

// [begin, end).
struct VisibleKeys {
  int begin;
  int end;
};

// The keys that a row sees. Only heads of 256 dims, which sliding layers have, see keys ahead of
// them; the others save the registers.
template <int kValueLen>
__device__ __forceinline__ VisibleKeys KeysOfRow(const AttentionParams& params,
                                                 const HopperItem& work, int row) {
  const int query =
      work.item.query_begin + min(row / params.heads_per_kv_head, work.item.num_queries - 1);
  const int position = work.sequence.first_position + query;
  int end = position + 1;
  if constexpr (kValueLen == 256) {
    end = params.KeyEnd(work.sequence.first_query + query, position);
  }
  return {max(params.window > 0 ? position - params.window + 1 : 0, work.item.key_begin),
          min(end, work.item.key_end)};
}

// Where the 16-byte piece of a row lies among operands of 64-column runs, `run_bytes` each.
__device__ __forceinline__ uint32_t OperandPiece(int row, int piece, int run_bytes) {
  return piece / 8 * run_bytes + row * kSwizzledRowBytes + ((piece ^ row) & 7) * 16;
}

// A warp starts the copy of kCount rows of kRuns x 128 bytes to an operand. Lane l has the source
// of row first_row + l in `lane_source`; 0: zeros. Eight lanes take a row, run after run.
template <int kCount, int kRuns>
__device__ __forceinline__ void CopyRows(const AttentionParams& params, int64_t lane_source,
                                         int offset, int first_row, int run_bytes, uint32_t to) {
  const int lane = threadIdx.x % 32;
  const int piece = lane % 8;
#pragma unroll 4
  for (int first = 0; first < kCount; first += 4) {
    const int64_t source = __shfl_sync(0xffffffff, lane_source, first + lane / 8);
    const int row = first_row + first + lane / 8;
    const uint32_t place = to + OperandPiece(row, piece, run_bytes);
    const bool valid = source != 0;
    const std::byte* const from =
        (valid ? reinterpret_cast<const std::byte*>(source) : params.pool) + offset + piece * 16;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      CopyAsync(place + run * run_bytes, from + run * kSwizzledRowBytes, valid);
    }
  }
}

// A loading warp starts the copy of queries: rows [32 w, 32 w + 32) of the item, rows behind its
// last become zeros. Each warpgroup's 64 rows are an operand of their own.
template <int kKeyLen>
__device__ __forceinline__ void LoadHopperQueries(const AttentionParams& params,
                                                  const HopperItem& work, int warp,
                                                  uint32_t shared) {
  constexpr int kRunBytes = kWarpgroupRows * kSwizzledRowBytes;
  constexpr int kRuns = kKeyLen / kSwizzledRowValues;
  const int row = warp * 32 + static_cast<int>(threadIdx.x % 32);
  const int64_t source =
      row < work.num_rows(params)
          ? reinterpret_cast<int64_t>(params.queries + work.HeadRow(params, row) * kKeyLen)
          : 0;
  CopyRows<32, kRuns>(params, source, 0, warp * 32 % kWarpgroupRows, kRunBytes,
                      shared + warp * 32 / kWarpgroupRows * (kRuns * kRunBytes));
}

// What this warp has copied so far, but for its last kPending groups, is there for wgmma too.
template <int kPending>
__device__ __forceinline__ void PublishCopies(uint32_t barrier) {
  WaitForCopies<kPending>();
  PublishToCopies();
  ArriveAtBarrier(barrier);
}

// One row of a lane: its scores lie in the four lanes of a quad.
struct SoftmaxRow {
  float maximum = -INFINITY;  // of scores times log2 e
  float sum = 0.0f;           // of P; of this lane's part until AddQuad
};

__device__ __forceinline__ void AddQuad(SoftmaxRow& row) {
  row.sum += __shfl_xor_sync(0xffffffff, row.sum, 1);
  row.sum += __shfl_xor_sync(0xffffffff, row.sum, 2);
}

// Scores of a lane as wgmma leaves them: columns 8 j + 2 t (+ 1) of rows g (in 4 j, 4 j + 1) and
// g + 8. Keys that a row does not see get no weight. `key`: of the lane's first score.
template <int kCount>
__device__ __forceinline__ void MaskScores(float (&scores)[kCount], const VisibleKeys (&visible)[2],
                                           int key) {
#pragma unroll
  for (int idx = 0; idx < kCount; ++idx) {
    const int at = key + idx / 4 * 8 + idx % 2;
    const VisibleKeys& row = visible[idx / 2 % 2];
    if (at < row.begin || at >= row.end) scores[idx] = -INFINITY;
  }
}

// Scores become P, relative to the maximum so far. Returns by how much each row's sums shrink.
template <int kCount>
__device__ __forceinline__ float2 MakeWeights(float (&scores)[kCount], SoftmaxRow (&rows)[2]) {
  constexpr float kLog2e = 1.4426950408889634f;
  float shrink[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float highest = -INFINITY;
#pragma unroll
    for (int idx = 2 * half; idx < kCount; idx += 4) {
      highest = fmaxf(highest, fmaxf(scores[idx], scores[idx + 1]));
    }
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
    const float now = fmaxf(rows[half].maximum, highest * kLog2e);
    const float reference = now == -INFINITY ? 0.0f : now;
    shrink[half] = Exp2(rows[half].maximum - reference);
    rows[half].maximum = now;
    float sum = 0.0f;
#pragma unroll
    for (int idx = 2 * half; idx < kCount; idx += 4) {
      scores[idx] = Exp2(__fmaf_rn(scores[idx], kLog2e, -reference));
      scores[idx + 1] = Exp2(__fmaf_rn(scores[idx + 1], kLog2e, -reference));
      sum += scores[idx] + scores[idx + 1];
    }
    rows[half].sum = rows[half].sum * shrink[half] + sum;
  }
  return make_float2(shrink[0], shrink[1]);
}

// A lane's sums of 256 columns, in two arrays as wgmma has them: columns 128 h + 8 j + 2 t (+ 1).
using HopperSums = float[2][64];

// Whether any row of the warp does.
__device__ __forceinline__ bool Shrinks(const float2& shrink) {
  return __any_sync(0xffffffff, shrink.x != 1.0f || shrink.y != 1.0f) != 0;
}
__device__ __forceinline__ void ShrinkSums(HopperSums& sums, const float2& shrink) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int idx = 0; idx < 64; ++idx) sums[half][idx] *= idx / 2 % 2 == 0 ? shrink.x : shrink.y;
  }
}

// Rows g and g + 8 of row tile `tile` of an item that is not split. `first_column`: of the sums.
template <typename Form>
__device__ __forceinline__ void StoreHopperRows(const AttentionParams& params,
                                                const HopperItem& work, int tile, int first_column,
                                                const HopperSums& sums, const float (&total)[2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int row = tile * 16 + high * 8 + lane / 4;
    if (row >= work.num_rows(params)) continue;
    const float inverse = __frcp_rn(total[high]);
    __nv_bfloat16* const out =
        params.out + work.HeadRow(params, row) * Form::kValueLen + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int block = 0; block < 16; ++block) {
        const int column = Form::DimOf(first_column + half * 128 + block / 8 * 64) + block % 8 * 8;
        *reinterpret_cast<__nv_bfloat162*>(out + column) =
            __floats2bfloat162_rn(__fmul_rn(sums[half][4 * block + 2 * high], inverse),
                                  __fmul_rn(sums[half][4 * block + 2 * high + 1], inverse));
      }
    }
  }
}

// The same of a split, in the form that MergeSplits joins.
template <typename Form>
__device__ __forceinline__ void StoreHopperPartials(const AttentionParams& params,
                                                    const HopperItem& work, int tile,
                                                    int first_column, const HopperSums& sums,
                                                    const float (&maximum)[2],
                                                    const float (&total)[2]) {
  const int lane = threadIdx.x % 32;
  const int num_rows = work.num_rows(params);
  const int row_tiles = (num_rows + 15) / 16;
  float* const slot =
      params.partials +
      int64_t{work.item.first_partial + work.item.split * row_tiles + tile} * Form::kSlotFloats;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int row = high * 8 + lane / 4;
    if (tile * 16 + row >= num_rows) continue;
    float* const at = slot + row * Form::kValueLen + first_column + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int block = 0; block < 16; ++block) {
        *reinterpret_cast<float2*>(at + half * 128 + block * 8) =
            make_float2(sums[half][4 * block + 2 * high], sums[half][4 * block + 2 * high + 1]);
      }
    }
    if (first_column == 0 && lane % 4 == 0) {
      float* const tail = slot + kAttentionPartialRows * Form::kValueLen + row;
      tail[0] = maximum[high];
      tail[kAttentionPartialRows] = total[high];
    }
  }
}

// The 256 threads that hold sums (threads 0 to 255): whoever is last of a tile's splits joins them.
// `task` is theirs, in shared memory.
template <typename Form>
__device__ __forceinline__ void JoinHopperSplits(const AttentionParams& params,
                                                 const HopperItem& work, AttentionTask& task) {
  const auto sync = [] { asm volatile("bar.sync 1, %0;" ::"n"(kAttentionThreads) : "memory"); };
  __threadfence();
  sync();
  if (threadIdx.x == 0) {
    task.item = work.item;
    task.sequence = work.sequence;
    const int32_t before = atomicAdd(params.counters + work.item.first_partial, 1);
    task.is_last_split = before == work.item.num_splits - 1;
  }
  sync();
  if (task.is_last_split != 0) {
    __threadfence();
    MergeSplits<Form>(params, task);
    if (threadIdx.x == 0) params.counters[work.item.first_partial] = 0;
  }
  sync();  // The task is out of use.
}

}  // namespace lapidary::cuda
