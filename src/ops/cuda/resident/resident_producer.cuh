// The producer warp of a resident step: loads what its block needs into the ring, in the order of
// use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/tma.cuh"
#include "ops/cuda/resident/resident_entry_runs.h"
#include "ops/cuda/resident/resident_product.cuh"
#include "ops/cuda/resident/resident_program.h"
#include "ops/cuda/resident/resident_splits.cuh"

namespace lapidary::cuda {

// What is loaded into one slot.
struct Piece {
  const CUtensorMap* map;
  int row;
  int chunk;
  int up_offset;         // MatrixPart's
  uint32_t up_place;     // of up rows, in the slot
  uint32_t chunk_bytes;  // of a gated part's half
  int num_chunks;        // that the slot has room for
  int num_copies;        // 0: one; else one for each of so many chunks
  // Of a tiled matrix: so many bytes of a stripe, and of another to `up_place`, if there is one.
  const std::byte* low;  // null: of bf16
  const std::byte* high;
  uint32_t num_bytes;
};

// The phases in which a block has a part of the matrix, one after the other. Matrices are read a
// phase ahead: there is no time to wait for memory here.
class PartCursor {
 public:
  __device__ PartCursor(const ResidentProgram* program, int num_phases)
      : matrices_(program->matrices()),
        num_phases_(num_phases),
        next_(matrices_[0]),
        part_(PartOfBlock(next_)) {
    Next();
  }

  __device__ bool done() const { return phase_ == num_phases_; }
  __device__ int phase() const { return phase_; }
  __device__ const MatrixPart& part() const { return part_; }

  __device__ void Next() {
    do {
      if (++phase_ == num_phases_) return;
      part_ = PartOfBlock(next_);
      if (phase_ + 1 < num_phases_) next_ = matrices_[phase_ + 1];
    } while (part_.count == 0);
  }

 private:
  const ResidentMatrix* const matrices_;
  const int num_phases_;
  ResidentMatrix next_;
  MatrixPart part_;
  int phase_ = -1;
};

// The experts of this layer, in shared memory.
struct ResidentChoice {
  uint64_t made;  // barrier: the preparing warp, once a layer
  int32_t experts[kResidentMaxRanks];
  float weights[kResidentMaxRanks];
};

// All pieces of a block, in the order of their use. `experts`: the choice, where there is one.
template <bool kExperts>
class PieceCursor {
 public:
  __device__ PieceCursor(const ResidentProgram* program, int num_phases, const int32_t* experts)
      : parts_(program, num_phases),
        maps_(program->maps()),
        experts_(experts),
        num_phases_(num_phases) {
    for (int idx = 0; idx < min(kMapsAhead, num_phases_); ++idx) PrefetchMaps(idx);
    num_tiles_ = parts_.part().num_tiles();
  }

  __device__ bool done() const { return parts_.done(); }
  __device__ int phase() const { return parts_.phase(); }
  __device__ Piece Take() {
    const MatrixPart& part = parts_.part();
    int row = part.TileBegin(tile_);
    int chunk = chunk_;
    int row_chunks = part.num_chunks;
    if constexpr (kExperts) {
      const ResidentMatrix& matrix = part.matrix;
      if (matrix.by_rank) {
        row += experts_[part.rank] * matrix.num_rows;
      } else if (matrix.num_ranks > 0) {
        const int rank = chunk_ / matrix.rank_chunks();
        row += experts_[rank] * matrix.num_rows;
        chunk -= rank * matrix.rank_chunks();
        row_chunks = matrix.rank_chunks();
      }
    }
    const Piece piece = part.matrix.is_tiled() ? StripePiece(part, row, chunk, row_chunks)
                                               : BoxPiece(part, row, chunk);
    chunk_ += part.matrix.slot_chunks;
    if (chunk_ >= part.num_chunks) {
      chunk_ = 0;
      if (++tile_ == num_tiles_) {
        tile_ = 0;
        parts_.Next();
        num_tiles_ = parts_.part().num_tiles();
        if (parts_.phase() + kMapsAhead < num_phases_) PrefetchMaps(parts_.phase() + kMapsAhead);
      }
    }
    return piece;
  }

 private:
  static constexpr int kMapsAhead = 4;  // phases

  __device__ __forceinline__ Piece BoxPiece(const MatrixPart& part, int row, int chunk) const {
    return {.map = maps_ + 2 * parts_.phase() + (part.IsLast(tile_) ? 1 : 0),
            .row = row,
            .chunk = chunk,
            .up_offset = part.up_offset,
            .up_place = static_cast<uint32_t>(HalfLines(part.matrix, part.TileSize(tile_)) *
                                              kChunkRowBytes),
            .chunk_bytes = static_cast<uint32_t>(part.TileSize(tile_) * kChunkRowBytes),
            .num_chunks = part.matrix.slot_chunks,
            .num_copies =
                part.matrix.one_copy ? 0 : min(part.matrix.slot_chunks, part.num_chunks - chunk_),
            .low = nullptr,
            .high = nullptr,
            .num_bytes = 0};
  }
  // Rows of the matrix have `row_chunks` units.
  __device__ __forceinline__ Piece StripePiece(const MatrixPart& part, int row, int chunk,
                                               int row_chunks) const {
    const ResidentMatrix& matrix = part.matrix;
    const auto stripe = [&](int first_row) {
      return matrix.tiles +
             (static_cast<int64_t>(first_row / 8) * row_chunks + chunk) * matrix.unit_bytes;
    };
    const bool has_high = matrix.gated || part.TileCount(tile_) > 8;
    Piece piece{};
    piece.low = stripe(row);
    piece.high = has_high ? stripe(row + (matrix.gated ? part.up_offset : 8)) : nullptr;
    piece.up_place = matrix.stripe_place();
    piece.num_bytes = min(matrix.slot_chunks, part.num_chunks - chunk_) * matrix.unit_bytes;
    return piece;
  }

  __device__ void PrefetchMaps(int phase) const {
    PrefetchMap(maps_[2 * phase]);
    PrefetchMap(maps_[2 * phase + 1]);
  }

  PartCursor parts_;
  const CUtensorMap* const maps_;
  const int32_t* const experts_;
  const int num_phases_;
  int num_tiles_ = 0;
  int tile_ = 0;
  int chunk_ = 0;
};

// Fills the ring; one warp.
template <int kSlotBytes, int kInFlight>
class Producer {
 public:
  __device__ explicit Producer(const Ring<kSlotBytes>& ring) : ring_(ring) {}

  __device__ __forceinline__ void Produce(const Piece& piece) {
    WaitForRoom();
    if (threadIdx.x % 32 == 0) BringToSlot(piece);
    __syncwarp();
    at_.Advance(ring_.num_slots);
  }

  // Runs of entries, `num_bytes` each, one of each lane that has one, to that place in the slot.
  __device__ __forceinline__ void Produce(bool has_run, const bf16* run, int num_bytes, int place) {
    const auto lanes = static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, has_run)));
    WaitForRoom();
    const uint32_t barrier = ring_.Arrived(at_);
    const int lane = threadIdx.x % 32;
    if (lane == 0 && lanes == 0) ArriveAtBarrier(barrier);
    if (lane == 0 && lanes > 0) ExpectBytes(barrier, lanes * num_bytes);
    __syncwarp();
    if (has_run) {
      // They shall not push out of L2 what all blocks read in every phase.
      CopyBytesOnce(run, SharedAddress(ring_.Slot(at_)) + place, num_bytes, barrier);
    }
    __syncwarp();
    at_.Advance(ring_.num_slots);
  }

 private:
  __device__ __forceinline__ void BringToSlot(const Piece& piece) {
    const uint32_t barrier = ring_.Arrived(at_);
    const uint32_t slot = SharedAddress(ring_.Slot(at_));
    const bool gated = piece.up_offset != 0;
    const uint32_t up = slot + piece.up_place;
    if (piece.low != nullptr) {
      ExpectBytes(barrier, piece.high != nullptr ? 2 * piece.num_bytes : piece.num_bytes);
      CopyBytesOnce(piece.low, slot, piece.num_bytes, barrier);
      if (piece.high != nullptr) CopyBytesOnce(piece.high, up, piece.num_bytes, barrier);
    } else if (piece.num_copies == 0) {
      const uint32_t num_bytes = piece.num_chunks * piece.chunk_bytes;
      ExpectBytes(barrier, gated ? 2 * num_bytes : num_bytes);
      CopyChunks(*piece.map, piece.row, piece.chunk, slot, barrier, BoxUse::kOnce);
      if (gated) {
        CopyChunks(*piece.map, piece.row + piece.up_offset, piece.chunk, up, barrier,
                   BoxUse::kOnce);
      }
    } else {
      const uint32_t num_bytes = piece.num_copies * piece.chunk_bytes;
      ExpectBytes(barrier, gated ? 2 * num_bytes : num_bytes);
#pragma unroll 1
      for (int idx = 0; idx < piece.num_copies; ++idx) {
        const int column = (piece.chunk + idx) * kChunkValues;
        const uint32_t to = idx * piece.chunk_bytes;
        CopyBox(*piece.map, piece.row, column, slot + to, barrier, BoxUse::kOnce);
        if (gated) {
          CopyBox(*piece.map, piece.row + piece.up_offset, column, up + to, barrier, BoxUse::kOnce);
        }
      }
    }
  }

  // Until the next slot is free and few enough others are on their way.
  __device__ __forceinline__ void WaitForRoom() {
    if (num_started_ == kInFlight) {
      AwaitBarrier(ring_.Arrived(oldest_), oldest_.parity);
      oldest_.Advance(ring_.num_slots);
    } else {
      ++num_started_;
    }
    AwaitBarrier(ring_.Consumed(at_), at_.parity ^ 1);
  }

  const Ring<kSlotBytes> ring_;
  RingPosition at_;
  RingPosition oldest_;  // that may still be on its way
  int num_started_ = 0;  // without waiting for another
};

// The cached entries of this block's part in a layer's attention, round by round, as many slots for
// each round. `pages`: of the first round, the same in all layers of a group.
template <int kSlotBytes, int kInFlight>
__device__ __forceinline__ void ProduceEntries(const ResidentStepCall& call,
                                               const ResidentKv& layer, const SplitPlan& plan,
                                               const ResidentSequence& sequence, RoundPages pages,
                                               Producer<kSlotBytes, kInFlight>& producer) {
  const int32_t* page_ids = call.page_ids[layer.group] + sequence.table_base;
  const SplitKeys keys(plan, blockIdx.x);
  const EntryRuns runs = EntryRunsOf<kSlotBytes>(layer.entry_len);
  const int num_runs = runs.keys() == 1 ? plan.round_keys : plan.round_keys / EntryRuns::kLongKeys;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int round = keys.first; round < keys.end; round += plan.round_keys) {
    // There is no time to wait for them when they are needed.
    const RoundPages next = RoundPages::Load(page_ids, call.tokens_per_page[layer.group],
                                             round + plan.round_keys, keys.end);
#pragma unroll 1
    for (int first = 0; first < num_runs; first += runs.per_slot()) {
      const int run = first + lane;
      const int key = round + run * runs.keys();
      // The row's own one is not cached yet. What is copied behind it, of its page, nobody reads.
      const bool is_cached =
          lane < runs.per_slot() && run < num_runs && key < keys.end && key < sequence.num_cached;
      const int page = pages.Of(run * runs.keys());
      const bf16* entry = is_cached ? EntryOf(call, layer, page, keys.kv_head, key) : nullptr;
      producer.Produce(is_cached, entry, runs.num_bytes(), runs.PlaceOf(run, lane));
    }
    pages = next;
  }
}

// All that a block needs; one warp. `choice`: with experts.
template <int kInFlight, bool kExperts, int kSlotBytes>
__device__ __forceinline__ void BringAll(const Ring<kSlotBytes>& ring, const ResidentStepCall& call,
                                         int num_phases, const SplitPlan* plans,
                                         const ResidentSequence* sequences,
                                         const ResidentChoice* choice) {
  const auto* program = static_cast<const ResidentProgram*>(call.program);
  Producer<kSlotBytes, kInFlight> producer(ring);
  PieceCursor<kExperts> cursor(program, num_phases, kExperts ? choice->experts : nullptr);
  bool may_read_cache = false;
  RoundPages first_pages[kNumKvGroups];
  uint32_t choice_parity = 0;
  ResidentKv next_kv = program->kv()[0];  // read a phase ahead, as matrices are
#pragma unroll 1
  for (int phase = 0; phase < num_phases; ++phase) {
    const ResidentKv kv = next_kv;
    if (phase + 1 < num_phases) next_kv = program->kv()[phase + 1];
    if (kv.entry_len > 0) {
      if (!may_read_cache) {
        WaitForPreviousKernel();  // The last step's entries are in their pages.
#pragma unroll
        for (int group = 0; group < kNumKvGroups; ++group) {
          if (program->groups[group].num_heads == 0) continue;
          if (blockIdx.x >= plans[group].num_splits) continue;
          const SplitKeys keys(plans[group], blockIdx.x);
          first_pages[group] = RoundPages::Load(call.page_ids[group] + sequences[group].table_base,
                                                call.tokens_per_page[group], keys.first, keys.end);
        }
        may_read_cache = true;
      }
      if (blockIdx.x < plans[kv.group].num_splits) {
        ProduceEntries(call, kv, plans[kv.group], sequences[kv.group],
                       kv.group == 0 ? first_pages[0] : first_pages[1], producer);
      }
    }
    if constexpr (kExperts) {
      if (kv.chooses_experts) {
        AwaitBarrier(SharedAddress(&choice->made), choice_parity);
        choice_parity ^= 1;
      }
    }
    while (!cursor.done() && cursor.phase() == phase) producer.Produce(cursor.Take());
  }
}

}  // namespace lapidary::cuda
