// What an attention kernel is made for (AttentionForm), how an item's block lays out its shared
// memory (AttentionShape), and what it is given (AttentionParams, AttentionTask).
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "model/kv_entry.h"
#include "ops/cuda/attention/attention_work.h"
#include "ops/cuda/sm90.h"

namespace lapidary::cuda {

inline constexpr int kAttentionWarps = 8;
inline constexpr int kAttentionThreads = kAttentionWarps * 32;

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
template <typename FormValue, int kRowTilesValue>
struct AttentionShape {
  using Form = FormValue;
  static constexpr int kRowTiles = kRowTilesValue;
  static constexpr int kRows = kRowTiles * 16;
  // Score work: 4 blocks of 8 keys per row tile, kKeyBlocks of them per warp. With one row tile
  // half of the warps have none.
  static constexpr int kKeyBlocks = kRowTiles <= 2 ? 1 : kRowTiles / 2;
  static constexpr int kWarpsPerRowTile = 4 / kKeyBlocks;
  static constexpr int kColumnBlocks = Form::kWarpColumns / 8;  // of a product's result, per warp

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
  const int32_t* keys_ahead;  // AttentionCall
  float* combined_totals;     // null unless batch-invariant
  float* partials;
  int32_t* counters;
  int32_t tokens_per_page;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t heads_per_kv_head;
  int32_t window;

  // The end of the keys that a query at `position` sees.
  __device__ int KeyEnd(int query_row, int position) const {
    return position + 1 + (keys_ahead == nullptr ? 0 : keys_ahead[query_row]);
  }
};
}  // namespace lapidary::cuda
