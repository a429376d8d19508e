// Attention of tiles of up to 128 or 64 rows over heads of 256 dims, on Hopper.
//
// A block stays on its SM and works through items. Four warps load keys and values, each half a
// tile of 64 keys at a time, into two stages of each; two warpgroups have 64 rows each, or, where
// tiles are too few to go round, the same 64 and every other tile of keys:
//   scores of a tile (wgmma, queries and keys from shared memory), while
//   the values of the tile before are added (wgmma, P from registers);
//   then maxima and P of the new tile.
#include "ops/cuda/attention/attention_hopper.cuh"
#include "ops/cuda/attention/attention_hopper.h"

namespace lapidary::cuda {
namespace {

using Form = AttentionForm<256, 256, 256, 8, 1>;

constexpr int kHeadDim = Form::kValueLen;
constexpr int kKeys = 64;  // of a tile
constexpr int kStages = 2;
constexpr int kGroups = 2;  // of 64 rows, a warpgroup each
constexpr int kComputing = kGroups * kWarpgroupThreads;
constexpr int kComputingWarps = kComputing / 32;
constexpr int kThreads = kComputing + 128;  // and the warps that load

// Operands: [run of 64 columns][row or key][128 bytes].
constexpr int kRuns = kHeadDim / kSwizzledRowValues;
constexpr int kQueryRunBytes = kWarpgroupRows * kSwizzledRowBytes;
constexpr int kQueryBytes = kRuns * kQueryRunBytes;  // of a group
constexpr int kKeyRunBytes = kKeys * kSwizzledRowBytes;
constexpr int kStageBytes = kRuns * kKeyRunBytes;  // of keys or values

// Stages of keys and values have arrived or are free again, and so the queries.
enum Barrier { kKeysHere, kKeysFree, kValuesHere, kValuesFree, kQueriesHere, kQueriesFree };

// Places in shared memory.
constexpr int kBarriersAt = 0;
constexpr int kTaskAt = 128;
constexpr int kJoinRowsAt = 256;  // float2 [64 rows]: maxima and sums of P
constexpr int kQueriesAt = 1024;
constexpr int kKeysAt = kQueriesAt + kGroups * kQueryBytes;
constexpr int kValuesAt = kKeysAt + kStages * kStageBytes;
constexpr int kSharedBytes = kValuesAt + kStages * kStageBytes;
// Sums of 128 columns of 64 rows, [value of a thread][thread], where the second group's queries
// would lie.
constexpr int kJoinSumsAt = kQueriesAt + kQueryBytes;
static_assert(64 * kWarpgroupThreads * 4 <= kQueryBytes);
static_assert(kTaskAt + sizeof(AttentionTask) <= kJoinRowsAt);
static_assert(kJoinRowsAt + kWarpgroupRows * 8 <= kQueriesAt);
static_assert(kSharedBytes <= Form::kSharedBytes);

__device__ __forceinline__ uint32_t BarrierAt(uint32_t shared, Barrier barrier, int stage = 0) {
  return shared + kBarriersAt + (kStages * barrier + stage) * 8;
}

// One of the loading warps. Two load keys, two load values: half of the keys of a tile each.
template <bool kSharesRows>
class Loader {
 public:
  __device__ Loader(const AttentionParams& params, uint32_t shared)
      : params_(params),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x - kComputing) / 32),
        lane_(threadIdx.x % 32) {}

  __device__ void Run() {
    const int num_items = *params_.num_items;
    uint32_t queries_parity = 1;
#pragma unroll 1
    for (int idx = blockIdx.x; idx < num_items; idx += gridDim.x, queries_parity ^= 1) {
      const HopperItem work(params_, idx);
      AwaitBarrier(BarrierAt(shared_, kQueriesFree), queries_parity);
      if (!kSharesRows || warp_ < kWarpgroupRows / 32) {
        LoadHopperQueries<kHeadDim>(params_, work, warp_, shared_ + kQueriesAt);
      }
      CommitCopies();
      PublishCopies<0>(BarrierAt(shared_, kQueriesHere));
      LoadTiles(work);
    }
  }

 private:
  __device__ void LoadTiles(const HopperItem& work) {
    const bool loads_values = warp_ >= 2;
    const Barrier here = loads_values ? kValuesHere : kKeysHere;
    const Barrier free = loads_values ? kValuesFree : kKeysFree;
    const uint32_t to = shared_ + (loads_values ? kValuesAt : kKeysAt);
    const int offset = loads_values ? 0 : Form::kKeyOffset * 2;
    const int first_row = warp_ % 2 * (kKeys / 2);
    const int num_tiles = work.num_tiles(kKeys);
    int key = work.item.key_begin + first_row + lane_;  // lane l knows where that one lies
    int32_t page = work.PageOf(params_, key);
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile, key += kKeys) {
      const int64_t source = work.EntryAt(params_, key, page, Form::kEntryLen);
      page = work.PageOf(params_, key + kKeys);  // on its way a tile ahead
      AwaitBarrier(BarrierAt(shared_, free, stage_.slot), stage_.parity ^ 1);
      CopyRows<kKeys / 2, kRuns>(params_, source, offset, first_row, kKeyRunBytes,
                                 to + stage_.slot * kStageBytes);
      CommitCopies();
      PublishCopies<0>(BarrierAt(shared_, here, stage_.slot));
      stage_.Advance(kStages);
    }
  }

  const AttentionParams& params_;
  const uint32_t shared_;
  const int warp_;
  const int lane_;
  RingPosition stage_;
};

// One warpgroup: 64 rows. If they are the other one's too, it has every other tile of keys.
template <bool kSharesRows>
class Group {
 public:
  __device__ Group(const AttentionParams& params, uint32_t shared)
      : params_(params), shared_(shared), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void Run(AttentionTask& task) {
    const int num_items = *params_.num_items;
    if (warp_ / 4 == 1) GiveTurn(0);
#pragma unroll 1
    for (int idx = blockIdx.x; idx < num_items; idx += gridDim.x) {
      HopperSums sums;
      SoftmaxRow rows[2];
      AddTiles(HopperItem(params_, idx), sums, rows);
      // Read anew, so that nothing of it is kept in registers meanwhile.
      Store(HopperItem(params_, idx), sums, rows, task);
    }
  }

 private:
  using Weights = uint32_t[kKeys / 16][4];

  // From one of its tiles to the next.
  static constexpr int kStep = kSharesRows ? 2 : 1;
  static constexpr int kStepKeys = kStep * kKeys;

  __device__ bool has_odd_tiles() const { return (parities_ & 2) != 0; }
  // Of the 16 rows that this warp has.
  __device__ int RowTile() const { return kSharesRows ? warp_ % 4 : warp_; }

  __device__ __forceinline__ void AddTiles(const HopperItem& work, HopperSums& sums,
                                           SoftmaxRow (&rows)[2]) {
    const int key_end = work.item.key_end;
    const int row = RowTile() * 16 + lane_ / 4;
    const VisibleKeys visible[2] = {KeysOfRow<kHeadDim>(params_, work, row),
                                    KeysOfRow<kHeadDim>(params_, work, row + 8)};
    // Keys that all rows of this warp see.
    const int all_begin = __reduce_max_sync(0xffffffff, max(visible[0].begin, visible[1].begin));
    const int all_end = __reduce_min_sync(0xffffffff, min(visible[0].end, visible[1].end));
#pragma unroll
    for (int idx = 0; idx < 64; ++idx) sums[0][idx] = sums[1][idx] = 0.0f;
    AwaitBarrier(BarrierAt(shared_, kQueriesHere), parities_ & 1);
    parities_ = (~parities_ & 1) | (work.num_tiles(kKeys) & 1) << 1;

    // Tiles are known by their first key.
    const auto weigh = [&](int first_key, float(&scores)[kKeys / 2]) {
      WgmmaKeep(scores);
      Release(kKeysFree, stage_.slot);
      stage_.Advance(kStages, kStep);
      if (first_key < all_begin || first_key + kKeys > all_end) {
        MaskScores(scores, visible, first_key + lane_ % 4 * 2);
      }
      return MakeWeights(scores, rows);
    };
    // P of a tile, as the first operand of the product with V. One is in use while the next is
    // made.
    Weights even;
    Weights odd;
    const auto pack = [&](const float(&scores)[kKeys / 2], Weights& to) {
#pragma unroll
      for (int idx = 0; idx < kKeys / 4; ++idx) {
        to[idx / 4][idx % 4] = PackBf16x2(scores[2 * idx], scores[2 * idx + 1]);
        // Here, not behind the wait for other products.
        asm volatile("" : "+r"(to[idx / 4][idx % 4]));
      }
    };
    int key = work.item.key_begin;
    if (kSharesRows && warp_ / 4 == 1) {
      key += kKeys;
      stage_.Advance(kStages);
    }
    RingPosition values = stage_;
    const auto start_values = [&](const Weights& last) {
      if constexpr (kSharesRows) {
        // Of every other tile the stage is always the same.
        static_assert(kStages == kStep || !kSharesRows);
        StartValues({stage_.slot, stage_.parity ^ 1}, last, sums);
      } else {
        StartValues(values, last, sums);
      }
    };
    const auto finish_values = [&] {
      WgmmaWait<0>();
      WgmmaKeep(sums[0]);
      WgmmaKeep(sums[1]);
      Release(kValuesFree, kSharesRows ? stage_.slot : values.slot);
      values.Advance(kStages);
    };
    const auto finish_with = [&](const Weights& last) {
      start_values(last);
      finish_values();
    };
    const auto next_tile = [&](int first_key, const Weights& last, Weights& next) {
      float scores[kKeys / 2];
      TakeTurn();
      StartScores(scores);
      start_values(last);
      GiveTurn(1 - warp_ / 4);
      WgmmaWait<1>();
      const float2 shrink = weigh(first_key, scores);
      pack(scores, next);
      // A wait in each branch: the assembler moves it before the softmax if it can.
      if (Shrinks(shrink)) {
        finish_values();
        ShrinkSums(sums, shrink);
      } else {
        finish_values();
      }
    };
    if (key < key_end) {
      float scores[kKeys / 2];
      TakeTurn();
      StartScores(scores);
      GiveTurn(1 - warp_ / 4);
      WgmmaWait<0>();
      weigh(key, scores);
      pack(scores, even);
    }
    key += kStepKeys;
#pragma unroll 1
    for (; key + kStepKeys < key_end; key += 2 * kStepKeys) {
      next_tile(key, even, odd);
      next_tile(key + kStepKeys, odd, even);
    }
    if (key < key_end) {
      next_tile(key, even, odd);
      EndTurns();
      finish_with(odd);
    } else {
      EndTurns();
      if (key - kStepKeys < key_end) finish_with(even);
    }
    // It stands behind its own last tile: where the next item begins, unless the other group had
    // the very last one.
    if (kSharesRows && has_odd_tiles() == (warp_ / 4 == 0)) stage_.StepBack(kStages);
  }

  // Behind the last scores of an item.
  __device__ void EndTurns() const {
    if constexpr (kSharesRows) {
      if (warp_ / 4 == 1 && has_odd_tiles()) {
        TakeTurn();  // The first group had one turn more.
        GiveTurn(0);
      }
    } else {
      Release(kQueriesFree, 0);
    }
  }

  // The groups start their products in turns, so that one multiplies while the other weighs.
  __device__ void TakeTurn() const {
    asm volatile("bar.sync %0, %1;" ::"r"(3 + warp_ / 4), "n"(kComputing) : "memory");
  }
  __device__ static void GiveTurn(int group) {
    asm volatile("bar.arrive %0, %1;" ::"r"(3 + group), "n"(kComputing) : "memory");
  }

  __device__ void Release(Barrier barrier, int stage) const {
    if (lane_ == 0) ArriveAtBarrier(BarrierAt(shared_, barrier, stage));
  }

  // When the next keys are there.
  __device__ __forceinline__ void StartScores(float (&scores)[kKeys / 2]) const {
    AwaitBarrier(BarrierAt(shared_, kKeysHere, stage_.slot), stage_.parity);
#pragma unroll
    for (float& score : scores) score = 0.0f;
    const int query_group = kSharesRows ? 0 : warp_ / 4;
    const uint64_t queries = SwizzledOperand(shared_ + kQueriesAt + query_group * kQueryBytes);
    const uint64_t keys = SwizzledOperand(shared_ + kKeysAt + stage_.slot * kStageBytes);
    WgmmaBegin();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      Wgmma<kKeys>::Run(scores, queries + step / 4 * (kQueryRunBytes / 16) + step % 4 * 2,
                        keys + step / 4 * (kKeyRunBytes / 16) + step % 4 * 2);
    }
    WgmmaCommit();
  }

  __device__ __forceinline__ void StartValues(const RingPosition& at, const Weights& weights,
                                              HopperSums& sums) const {
    AwaitBarrier(BarrierAt(shared_, kValuesHere, at.slot), at.parity);
    const uint64_t values =
        TransposedOperand(shared_ + kValuesAt + at.slot * kStageBytes, kKeyRunBytes);
    WgmmaBegin();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        WgmmaOfRegisters128(sums[half], weights[step],
                            values + half * (2 * kKeyRunBytes / 16) + step * 128);
      }
    }
    WgmmaCommit();
  }

  __device__ static void StoreShared(uint32_t address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
  }
  __device__ static float LoadSharedFloat(uint32_t address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
  }

  // The second group's sums are added to the first one's, thread by thread, 128 columns at a time.
  __device__ __forceinline__ void JoinGroups(HopperSums& sums, SoftmaxRow (&rows)[2]) const {
    const auto sync = [] { asm volatile("bar.sync 1, %0;" ::"n"(kComputing) : "memory"); };
    const int thread = threadIdx.x % kWarpgroupThreads;
    const uint32_t row_at =
        shared_ + kJoinRowsAt + (thread / 32 * 16 + lane_ / 4) * 8;  // and 8 rows further
    const uint32_t sums_at = shared_ + kJoinSumsAt + thread * 4;
    float own[2];
    float other[2];
    if (warp_ / 4 == 1 && lane_ % 4 == 0) {
      StoreShared(row_at, rows[0].maximum);
      StoreShared(row_at + 4, rows[0].sum);
      StoreShared(row_at + 64, rows[1].maximum);
      StoreShared(row_at + 68, rows[1].sum);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (warp_ / 4 == 1) {
#pragma unroll
        for (int idx = 0; idx < 64; ++idx) {
          StoreShared(sums_at + idx * kWarpgroupThreads * 4, sums[half][idx]);
        }
      }
      sync();
      if (warp_ / 4 == 0) {
        if (half == 0) {
#pragma unroll
          for (int high = 0; high < 2; ++high) {
            const float maximum = LoadSharedFloat(row_at + 64 * high);
            const float now = fmaxf(rows[high].maximum, maximum);
            const float reference = now == -INFINITY ? 0.0f : now;
            own[high] = Exp2(rows[high].maximum - reference);
            other[high] = Exp2(maximum - reference);
            rows[high] = {now, rows[high].sum * own[high] +
                                   LoadSharedFloat(row_at + 64 * high + 4) * other[high]};
          }
        }
#pragma unroll
        for (int idx = 0; idx < 64; ++idx) {
          const int high = idx / 2 % 2;
          sums[half][idx] = sums[half][idx] * own[high] +
                            LoadSharedFloat(sums_at + idx * kWarpgroupThreads * 4) * other[high];
        }
      }
      sync();
    }
  }

  __device__ __forceinline__ void Store(const HopperItem& work, HopperSums& sums,
                                        SoftmaxRow (&rows)[2], AttentionTask& task) const {
    AddQuad(rows[0]);
    AddQuad(rows[1]);
    if constexpr (kSharesRows) {
      JoinGroups(sums, rows);
      Release(kQueriesFree, 0);
    }
    const bool stores = !kSharesRows || warp_ / 4 == 0;
    const float total[2] = {rows[0].sum, rows[1].sum};
    if (work.item.num_splits == 1) {
      if (stores) StoreHopperRows<Form>(params_, work, RowTile(), 0, sums, total);
      return;
    }
    const float maximum[2] = {rows[0].maximum, rows[1].maximum};
    if (stores) StoreHopperPartials<Form>(params_, work, RowTile(), 0, sums, maximum, total);
    JoinHopperSplits<Form>(params_, work, task);
  }

  const AttentionParams& params_;
  const uint32_t shared_;
  const int warp_;  // of all that compute
  const int lane_;
  uint32_t parities_ = 0;  // bit 0: of the next queries, bit 1: of the item's number of tiles
  RingPosition stage_;     // of keys
};

template <bool kSharesRows>
__global__ void __launch_bounds__(kThreads, 1)
    HopperAttention256(const __grid_constant__ AttentionParams params) {
  extern __shared__ __align__(1024) std::byte memory[];
  const uint32_t shared = SharedAddress(memory);
  AllowNextKernel();
  if (threadIdx.x == 0) {
    constexpr int kWarpsOfTile = kSharesRows ? kComputingWarps / 2 : kComputingWarps;
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(BarrierAt(shared, kKeysHere, stage), 2 * 32);
      InitBarrier(BarrierAt(shared, kKeysFree, stage), kWarpsOfTile);
      InitBarrier(BarrierAt(shared, kValuesHere, stage), 2 * 32);
      InitBarrier(BarrierAt(shared, kValuesFree, stage), kWarpsOfTile);
    }
    InitBarrier(BarrierAt(shared, kQueriesHere), 4 * 32);
    InitBarrier(BarrierAt(shared, kQueriesFree), kComputingWarps);
    PublishBarriers();
  }
  __syncthreads();
  WaitForPreviousKernel();
  if (threadIdx.x >= kComputing) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    Loader<kSharesRows>(params, shared).Run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    Group<kSharesRows>(params, shared).Run(*reinterpret_cast<AttentionTask*>(memory + kTaskAt));
  }
}

}  // namespace

void RunHopperAttention256(const LaunchContext& context, const AttentionParams& params,
                           int tile_rows) {
  CHECK(tile_rows == 2 * kWarpgroupRows || tile_rows == kWarpgroupRows);
  Launch(context,
         tile_rows == kWarpgroupRows ? HopperAttention256<true> : HopperAttention256<false>,
         dim3(context.Device().num_sms), dim3(kThreads), kSharedBytes, params);
}

}  // namespace lapidary::cuda
