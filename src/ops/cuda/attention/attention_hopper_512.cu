// Attention of tiles of up to 64 rows over heads of 512 dims, on Hopper.
//
// The sums of 64 rows fill the registers of two warpgroups, half of the columns each. A third one
// makes scores and P, a tile of keys ahead of them, and leaves P in shared memory, where the part
// of the keys that only it needs has been. Four warps load entries into a ring of stages.
#include "ops/cuda/attention/attention_hopper.cuh"
#include "ops/cuda/attention/attention_hopper.h"

namespace lapidary::cuda {
namespace {

constexpr int kAdding = 2 * kWarpgroupThreads;  // threads that add values
constexpr int kScoring = kWarpgroupThreads;     // behind them
constexpr int kLoadingWarps = 4;                // behind those
constexpr int kThreads = kAdding + kScoring + 32 * kLoadingWarps;
constexpr int kScoringWarps = kScoring / 32;

constexpr int kQueryRunBytes = kWarpgroupRows * kSwizzledRowBytes;
constexpr int kQueryBytes = 512 / kSwizzledRowValues * kQueryRunBytes;

// How a block uses its shared memory, for one form of entries. Where K is V a stage is whole
// entries; where they are apart, keys and values have stages of their own, since a key is out of
// use long before its value: [run of 64 columns][key][128 bytes].
template <typename FormOfEntries, int kStagesOfRing>
struct Plan {
  using Form = FormOfEntries;
  static constexpr bool kApart = !Form::kKeyIsValue;
  static constexpr int kKeys = 32;
  static constexpr int kStages = kStagesOfRing;
  static constexpr int kRunBytes = kKeys * kSwizzledRowBytes;
  static constexpr int kHeadRuns = 512 / kSwizzledRowValues;
  static constexpr int kStageRuns = kApart ? kHeadRuns : Form::kEntryLen / kSwizzledRowValues;
  static constexpr int kStageBytes = kStageRuns * kRunBytes;
  static constexpr int kWeightBytes = kWarpgroupRows * kSwizzledRowBytes;  // P, half of each row

  // Keys (whole entries, where K is V) have arrived or are free; P is there and the sums are to
  // shrink; values have arrived or are free, and so P; the queries; maxima and totals of an item.
  enum Barrier {
    kHere = 0,
    kFree = kStages,
    kWeighted = 2 * kStages,
    kValuesHere = 3 * kStages,
    kValuesFree = kApart ? 4 * kStages : kFree,
    kQueriesHere = 5 * kStages,
    kQueriesFree,
    kTotalsHere,
    kTotalsFree,
    kNumBarriers
  };
  static constexpr int kTaskAt = 256;
  static_assert(kNumBarriers * 8 <= kTaskAt);
  static constexpr int kTotalsAt = 384;               // f32 [2][64]: maximum, total of P
  static constexpr int kShrinksAt = kTotalsAt + 512;  // f32 [stages][64]
  static constexpr int kQueriesAt = (kShrinksAt + kStages * 256 + 1023) / 1024 * 1024;
  static constexpr int kStagesAt = kQueriesAt + kQueryBytes;
  static constexpr int kValuesAt = kStagesAt + (kApart ? kStages * kStageBytes : 0);
  static constexpr int kWeightsAt = kValuesAt + kStages * kStageBytes;
  static constexpr int kSharedBytes = kWeightsAt + (kApart ? kStages * kWeightBytes : 0);
  static_assert(kSharedBytes <= Form::kSharedBytes);

  static __device__ uint32_t BarrierAt(uint32_t shared, int barrier) {
    return shared + barrier * 8;
  }
  static __device__ uint32_t StageAt(uint32_t shared, int stage) {
    return shared + kStagesAt + stage * kStageBytes;
  }
  static __device__ uint32_t KeysAt(uint32_t shared, int stage) {
    return StageAt(shared, stage) +
           (kApart ? 0 : Form::kKeyOffset / kSwizzledRowValues * kRunBytes);
  }
  static __device__ uint32_t ValuesAt(uint32_t shared, int stage) {
    return shared + kValuesAt + stage * kStageBytes;
  }
  // Where K is V, P takes the place of the keys' rotary dims, which are no values.
  static __device__ uint32_t WeightsAt(uint32_t shared, int stage) {
    return kApart ? shared + kWeightsAt + stage * kWeightBytes
                  : StageAt(shared, stage) + kHeadRuns * kRunBytes;
  }
};

using SharedPlan = Plan<AttentionForm<512, 128, 512, 4, 1>, 4>;
using SeparatePlan = Plan<AttentionForm<512, 512, 512, 4, 1>, 2>;
static_assert((SharedPlan::kStageRuns - SharedPlan::kHeadRuns) * SharedPlan::kRunBytes >=
              SharedPlan::kWeightBytes);

// A loading warp has a quarter of the keys of each tile; where values are apart, half of the keys
// or half of the values.
template <typename P>
__device__ __forceinline__ void Load(const AttentionParams& params, uint32_t shared) {
  using Form = typename P::Form;
  constexpr int kWarps = P::kApart ? kLoadingWarps / 2 : kLoadingWarps;  // of a stage
  constexpr int kWarpKeys = P::kKeys / kWarps;
  const int warp = static_cast<int>(threadIdx.x - kAdding - kScoring) / 32;
  const int lane = threadIdx.x % 32;
  const bool loads_values = P::kApart && warp >= kWarps;
  const int here = loads_values ? P::kValuesHere : P::kHere;
  const int first_row = warp % kWarps * kWarpKeys;
  const int offset = P::kApart && !loads_values ? Form::kKeyOffset * 2 : 0;
  const int num_items = *params.num_items;
  RingPosition stage;   // to be filled
  RingPosition oldest;  // of those on their way, two at most
  int num_on_the_way = 0;
  const auto publish = [&] {
    const uint32_t barrier = P::BarrierAt(shared, here + oldest.slot);
    if (num_on_the_way == 2) {
      PublishCopies<1>(barrier);
    } else {
      PublishCopies<0>(barrier);
    }
    oldest.Advance(P::kStages);
    --num_on_the_way;
  };
  uint32_t queries_parity = 1;
#pragma unroll 1
  for (int idx = blockIdx.x; idx < num_items; idx += gridDim.x, queries_parity ^= 1) {
    const HopperItem work(params, idx);
    if (warp < 2) {
      AwaitBarrier(P::BarrierAt(shared, P::kQueriesFree), queries_parity);
      LoadHopperQueries<512>(params, work, warp, shared + P::kQueriesAt);
      CommitCopies();
      PublishCopies<0>(P::BarrierAt(shared, P::kQueriesHere));
    }
    const int num_tiles = work.num_tiles(P::kKeys);
    int key = work.item.key_begin + first_row + lane % kWarpKeys;
    int32_t page = work.PageOf(params, key);
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile, key += P::kKeys) {
      const int64_t source = work.EntryAt(params, key, page, Form::kEntryLen);
      page = work.PageOf(params, key + P::kKeys);  // on its way a tile ahead
      // Who waits for others holds nothing back.
      const uint32_t free =
          P::BarrierAt(shared, (loads_values ? P::kValuesFree : P::kFree) + stage.slot);
      if (num_on_the_way == 2) publish();
      if (num_on_the_way == 1 && !IsBarrierDone(free, stage.parity ^ 1)) publish();
      AwaitBarrier(free, stage.parity ^ 1);
      CopyRows<kWarpKeys, P::kStageRuns>(
          params, source, offset, first_row, P::kRunBytes,
          loads_values ? P::ValuesAt(shared, stage.slot) : P::StageAt(shared, stage.slot));
      CommitCopies();
      stage.Advance(P::kStages);
      ++num_on_the_way;
    }
    while (num_on_the_way > 0) publish();
  }
}

template <int kCount>
__device__ __forceinline__ void StoreWeights(const float (&weights)[kCount], uint32_t to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int idx = 0; idx < kCount; idx += 2) {
    const int row = static_cast<int>(threadIdx.x / 32) % 4 * 16 + idx / 2 % 2 * 8 + lane / 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + OperandPiece(row, idx / 4, 0) + lane % 4 * 4),
                 "r"(PackBf16x2(weights[idx], weights[idx + 1]))
                 : "memory");
  }
}

// When the keys of stage `at` are there; moves on.
template <typename P>
__device__ __forceinline__ void StartScores(uint32_t shared, RingPosition& at,
                                            float (&scores)[P::kKeys / 2]) {
  AwaitBarrier(P::BarrierAt(shared, P::kHere + at.slot), at.parity);
  const uint64_t queries = SwizzledOperand(shared + P::kQueriesAt);
  const uint64_t keys = SwizzledOperand(P::KeysAt(shared, at.slot));
#pragma unroll
  for (float& score : scores) score = 0.0f;
  WgmmaBegin();
#pragma unroll
  for (int step = 0; step < 512 / 16; ++step) {
    Wgmma<P::kKeys>::Run(scores, queries + step / 4 * (kQueryRunBytes / 16) + step % 4 * 2,
                         keys + step / 4 * (P::kRunBytes / 16) + step % 4 * 2);
  }
  WgmmaCommit();
  at.Advance(P::kStages);
}

// The warpgroup that makes P.
template <typename P>
__device__ __forceinline__ void Score(const AttentionParams& params, std::byte* memory,
                                      uint32_t shared) {
  const int warp = threadIdx.x / 32 % kScoringWarps;
  const int lane = threadIdx.x % 32;
  const int row = warp * 16 + lane / 4;
  const int num_items = *params.num_items;
  const auto arrive = [&](int barrier) { ArriveAtBarrier(P::BarrierAt(shared, barrier)); };
  RingPosition stage;
  uint32_t item_parity = 0;
#pragma unroll 1
  for (int idx = blockIdx.x; idx < num_items; idx += gridDim.x, item_parity ^= 1) {
    const HopperItem work(params, idx);
    const VisibleKeys visible[2] = {KeysOfRow<512>(params, work, row),
                                    KeysOfRow<512>(params, work, row + 8)};
    const int all_begin = __reduce_max_sync(0xffffffff, max(visible[0].begin, visible[1].begin));
    const int all_end = __reduce_min_sync(0xffffffff, min(visible[0].end, visible[1].end));
    const int num_tiles = work.num_tiles(P::kKeys);
    SoftmaxRow rows[2];
    AwaitBarrier(P::BarrierAt(shared, P::kQueriesHere), item_parity);
    // Products of the next tile run while this one is weighed.
    float scores[P::kKeys / 2];
    const auto weigh = [&](int tile, float(&own)[P::kKeys / 2]) {
      const int first_key = work.item.key_begin + tile * P::kKeys;
      if (first_key < all_begin || first_key + P::kKeys > all_end) {
        MaskScores(own, visible, first_key + lane % 4 * 2);
      }
      const float2 shrink = MakeWeights(own, rows);
      // All four warps have read the keys that P takes the place of.
      if (!P::kApart) asm volatile("bar.sync 2, %0;" ::"n"(kScoring) : "memory");
      if (P::kApart) {
        AwaitBarrier(P::BarrierAt(shared, P::kValuesFree + stage.slot), stage.parity ^ 1);
      }
      StoreWeights(own, P::WeightsAt(shared, stage.slot));
      if (lane % 4 == 0) {
        auto* const shrinks =
            reinterpret_cast<float*>(memory + P::kShrinksAt + stage.slot * 256) + row;
        shrinks[0] = shrink.x;
        shrinks[8] = shrink.y;
      }
      PublishToCopies();
      arrive(P::kWeighted + stage.slot);
      stage.Advance(P::kStages);
    };
    RingPosition next = stage;
    if (num_tiles > 0) {
      StartScores<P>(shared, next, scores);
      WgmmaWait<0>();
      WgmmaKeep(scores);
      if (P::kApart) arrive(P::kFree + stage.slot);
    }
#pragma unroll 1
    for (int tile = 0; tile + 1 < num_tiles; ++tile) {
      float next_scores[P::kKeys / 2];
      StartScores<P>(shared, next, next_scores);
      weigh(tile, scores);
      WgmmaWait<0>();
      WgmmaKeep(next_scores);
      if (P::kApart) arrive(P::kFree + stage.slot);
#pragma unroll
      for (int at = 0; at < P::kKeys / 2; ++at) scores[at] = next_scores[at];
    }
    if (num_tiles > 0) weigh(num_tiles - 1, scores);
    arrive(P::kQueriesFree);
    AddQuad(rows[0]);
    AddQuad(rows[1]);
    AwaitBarrier(P::BarrierAt(shared, P::kTotalsFree), item_parity ^ 1);
    if (lane % 4 == 0) {
      auto* const totals = reinterpret_cast<float*>(memory + P::kTotalsAt) + row;
      totals[0] = rows[0].maximum;
      totals[8] = rows[1].maximum;
      totals[64] = rows[0].sum;
      totals[72] = rows[1].sum;
    }
    arrive(P::kTotalsHere);
  }
}

// One of the warpgroups that add values, each to its half of the columns.
template <typename P>
__device__ __forceinline__ void AddValues(const AttentionParams& params, std::byte* memory,
                                          uint32_t shared) {
  using Form = typename P::Form;
  const int group = threadIdx.x / kWarpgroupThreads;
  const int warp = threadIdx.x / 32 % 4;  // row tile
  const int lane = threadIdx.x % 32;
  const int row = warp * 16 + lane / 4;
  const int num_items = *params.num_items;
  RingPosition stage;
  uint32_t item_parity = 0;
#pragma unroll 1
  for (int idx = blockIdx.x; idx < num_items; idx += gridDim.x, item_parity ^= 1) {
    const int num_tiles = HopperItem(params, idx).num_tiles(P::kKeys);
    HopperSums sums;
#pragma unroll
    for (int at = 0; at < 64; ++at) sums[0][at] = sums[1][at] = 0.0f;
    int last = 0;  // stage
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile) {
      AwaitBarrier(P::BarrierAt(shared, P::kWeighted + stage.slot), stage.parity);
      if (P::kApart) AwaitBarrier(P::BarrierAt(shared, P::kValuesHere + stage.slot), stage.parity);
      WgmmaWait<0>();
      WgmmaKeep(sums[0]);
      WgmmaKeep(sums[1]);
      if (tile > 0) ArriveAtBarrier(P::BarrierAt(shared, P::kValuesFree + last));
      const auto* const shrinks =
          reinterpret_cast<const float*>(memory + P::kShrinksAt + stage.slot * 256) + row;
      const float2 shrink = make_float2(shrinks[0], shrinks[8]);
      if (Shrinks(shrink)) ShrinkSums(sums, shrink);
      const uint64_t weights = SwizzledOperand(P::WeightsAt(shared, stage.slot));
      const uint64_t values = TransposedOperand(
          P::ValuesAt(shared, stage.slot) + group * 4 * P::kRunBytes, P::kRunBytes);
      WgmmaBegin();
#pragma unroll
      for (int step = 0; step < P::kKeys / 16; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          WgmmaTransposed128(sums[half], weights + step * 2,
                             values + half * (2 * P::kRunBytes / 16) + step * 128);
        }
      }
      WgmmaCommit();
      last = stage.slot;
      stage.Advance(P::kStages);
    }
    WgmmaWait<0>();
    WgmmaKeep(sums[0]);
    WgmmaKeep(sums[1]);
    if (num_tiles > 0) ArriveAtBarrier(P::BarrierAt(shared, P::kValuesFree + last));

    AwaitBarrier(P::BarrierAt(shared, P::kTotalsHere), item_parity);
    const auto* const totals = reinterpret_cast<const float*>(memory + P::kTotalsAt) + row;
    const float maximum[2] = {totals[0], totals[8]};
    const float total[2] = {totals[64], totals[72]};
    ArriveAtBarrier(P::BarrierAt(shared, P::kTotalsFree));
    const HopperItem work(params, idx);
    if (work.item.num_splits == 1) {
      StoreHopperRows<Form>(params, work, warp, group * 256, sums, total);
    } else {
      StoreHopperPartials<Form>(params, work, warp, group * 256, sums, maximum, total);
      JoinHopperSplits<Form>(params, work, *reinterpret_cast<AttentionTask*>(memory + P::kTaskAt));
    }
  }
}

template <typename P>
__global__ void __launch_bounds__(kThreads, 1)
    HopperAttention512(const __grid_constant__ AttentionParams params) {
  extern __shared__ __align__(1024) std::byte memory[];
  const uint32_t shared = SharedAddress(memory);
  AllowNextKernel();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < P::kStages; ++stage) {
      constexpr int kWarps = P::kApart ? kLoadingWarps / 2 : kLoadingWarps;
      InitBarrier(P::BarrierAt(shared, P::kHere + stage), 32 * kWarps);
      if (P::kApart) {
        InitBarrier(P::BarrierAt(shared, P::kFree + stage), kScoring);
        InitBarrier(P::BarrierAt(shared, P::kValuesHere + stage), 32 * kWarps);
      }
      InitBarrier(P::BarrierAt(shared, P::kValuesFree + stage), kAdding);
      InitBarrier(P::BarrierAt(shared, P::kWeighted + stage), kScoring);
    }
    InitBarrier(P::BarrierAt(shared, P::kQueriesHere), 2 * 32);
    InitBarrier(P::BarrierAt(shared, P::kQueriesFree), kScoring);
    InitBarrier(P::BarrierAt(shared, P::kTotalsHere), kScoring);
    InitBarrier(P::BarrierAt(shared, P::kTotalsFree), kAdding);
    PublishBarriers();
  }
  __syncthreads();
  WaitForPreviousKernel();
  if (threadIdx.x >= kAdding + kScoring) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    Load<P>(params, shared);
  } else if (threadIdx.x >= kAdding) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    Score<P>(params, memory, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
    AddValues<P>(params, memory, shared);
  }
}

}  // namespace

void RunHopperAttention512(const LaunchContext& context, const AttentionParams& params,
                           bool k_is_v) {
  const auto kernel = k_is_v ? HopperAttention512<SharedPlan> : HopperAttention512<SeparatePlan>;
  const int shared_bytes = k_is_v ? SharedPlan::kSharedBytes : SeparatePlan::kSharedBytes;
  Launch(context, kernel, dim3(context.Device().num_sms), dim3(kThreads), shared_bytes, params);
}

}  // namespace lapidary::cuda
