// Copies into the shared memory of an attention kernel: tiles of keys (with their values) into the
// stages of a ring, and the query rows of an item.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/attention/attention_form.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/warp_mma.cuh"

namespace lapidary::cuda {

// Rows of shared memory are swizzled: 16-byte piece c of row r lies at c ^ (r % 8), so that eight
// rows' pieces c, and eight pieces of a row, lie in different banks. Rows are multiples of 128
// bytes.
__device__ __forceinline__ int Swizzled(int row, int piece) { return piece ^ (row & 7); }
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
template <typename Shape>
__device__ void LoadQueries(const AttentionParams& params, const AttentionTask& task, int num_rows,
                            uint32_t shared) {
  using Form = typename Shape::Form;
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

// Starts an item's first copies: its queries and all stages but one of the tiles [first_tile,
// end_tile), as kStages - 1 groups of which the first has the queries.
template <typename Shape>
__device__ __forceinline__ void StartCopies(const AttentionParams& params,
                                            const AttentionTask& task, bool is_first, int num_rows,
                                            int first_tile, int end_tile, uint32_t shared,
                                            KeyLoader<typename Shape::Form>& loader) {
  const auto load_stage = [&](int stage) {
    if (first_tile + stage < end_tile) {
      loader.LoadNext(shared + Shape::kStageAt + stage * Shape::kStageBytes);
    }
  };
  if (is_first) {
    // Cached keys were there before the step began: they are on their way while the kernel that
    // makes the queries still runs. All copies are in the first group.
    int stage = 0;
    const int end_cached_tile = task.sequence.num_cached / kAttentionKeyTile;
#pragma unroll 1
    for (; stage < Shape::kStages - 1 && first_tile + stage < end_cached_tile; ++stage) {
      load_stage(stage);
    }
    WaitForPreviousKernel();
    LoadQueries<Shape>(params, task, num_rows, shared + Shape::kQueryAt);
#pragma unroll 1
    for (; stage < Shape::kStages - 1; ++stage) load_stage(stage);
    CommitCopies();
#pragma unroll 1
    for (int empty = 0; empty < Shape::kStages - 2; ++empty) CommitCopies();
  } else {
    LoadQueries<Shape>(params, task, num_rows, shared + Shape::kQueryAt);
#pragma unroll 1
    for (int stage = 0; stage < Shape::kStages - 1; ++stage) {
      load_stage(stage);
      CommitCopies();
    }
  }
}

}  // namespace lapidary::cuda
