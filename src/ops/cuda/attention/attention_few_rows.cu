// Attention of few rows, up to 32, over many keys on Hopper: steps that decode or verify drafts,
// which are bound by memory.
//
// A block stays on its SM and works through items. Keys come in tiles of 16, each entry by a bulk
// copy, into a ring of stages that runs on from item to item: four warps start the copies, eight
// compute. A computing warp has 8 rows, and needs nobody else while keys come in: its queries and
// its sums stay in registers,
//   scores = K Q^T (m16n8k16: the keys are the 16, the rows the 8), then P,
//   sums += V^T P^T (dims are the 16).
// Items of more rows go to two or four warps at once, the others take tiles in turn; at the end of
// an item their sums are joined, in the order of the warps.
#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/attention_hopper.cuh"
#include "ops/cuda/attention/attention_hopper.h"

namespace lapidary::cuda {
namespace {

constexpr int kKeys = 16;  // of a tile
constexpr int kWarpRows = 8;
constexpr int kComputingWarps = kAttentionWarps;
constexpr int kComputing = kComputingWarps * 32;
constexpr int kLoadingWarps = 4;
constexpr int kThreads = kComputing + kLoadingWarps * 32;
constexpr int kMaxParts = kFewRows / kWarpRows;  // of an item, 8 rows each
static_assert(kMaxParts == 4);

// Places in shared memory.
template <typename FormValue>
struct Plan {
  using Form = FormValue;
  // 16 bytes from entry to entry: the pieces of eight entries lie in different banks.
  static constexpr int kEntryBytes = Form::kEntryLen * 2;
  static constexpr int kEntryStride = kEntryBytes + 16;
  static constexpr int kStageBytes = kKeys * kEntryStride;

  static constexpr int kTaskAt = 256;    // behind the barriers
  static constexpr int kMaximaAt = 384;  // f32 [warps][8 rows], then the sums of P
  static constexpr int kTotalsAt = kMaximaAt + 2 * kComputingWarps * kWarpRows * 4;
  static constexpr int kJoinAt = 1280;  // behind f32 [32 rows] maxima and sums of P
  static_assert(kTotalsAt + 2 * kFewRows * 4 <= kJoinAt);
  // Sums of all warps, so many columns at a time: f32 [warps][8 rows][columns and 4]. With these 4
  // the lanes of a warp store to different banks.
  static constexpr int kJoinColumns = 128;
  static constexpr int kJoinStride = kJoinColumns + 4;
  static constexpr int kJoinFloats = kWarpRows * kJoinStride;  // of a warp
  static constexpr int kStagesAt = kJoinAt + kComputingWarps * kJoinFloats * 4;
  // A power of two, so that within an item a stage is always for the same warps. Others could be a
  // whole turn of the ring ahead of it, and a barrier's parity does not tell turns n and n + 2
  // apart.
  static constexpr int kStages = kStagesAt + 8 * kStageBytes <= Form::kSharedBytes ? 8 : 4;
  static constexpr int kSharedBytes = kStagesAt + kStages * kStageBytes;
  static_assert(kSharedBytes <= Form::kSharedBytes && 2 * kStages * 8 <= kTaskAt);
  static_assert(kStagesAt % 128 == 0);

  // Tiles are counted over all items of a block: tile n is the (n / kStages)-th of its stage.
  static __device__ uint32_t StageAt(uint32_t shared, uint32_t tile) {
    return shared + kStagesAt + tile % kStages * kStageBytes;
  }
  static __device__ uint32_t HereAt(uint32_t shared, uint32_t tile) {
    return shared + tile % kStages * 8;
  }
  static __device__ uint32_t FreeAt(uint32_t shared, uint32_t tile) {
    return shared + (kStages + tile % kStages) * 8;
  }
  static __device__ uint32_t ParityOf(uint32_t tile) { return tile / kStages & 1; }
};

// How the computing warps share an item: parts of 8 rows, and groups that have every so many-th
// tile. Warps beyond the last group have nothing to do.
template <typename P>
struct Shares {
  int shift;  // parts are 1, 2 or 4: 1 << shift

  __device__ explicit Shares(int num_rows)
      : shift(num_rows <= kWarpRows       ? 0
              : num_rows <= 2 * kWarpRows ? 1
                                          : 2) {}
  __device__ int parts() const { return 1 << shift; }
  __device__ int groups() const { return min(kComputingWarps >> shift, P::kStages); }
  __device__ int warps() const { return groups() << shift; }
  __device__ int PartOf(int warp) const { return warp & (parts() - 1); }
  __device__ int GroupOf(int warp) const { return warp >> shift; }
};

// One of the loading warps: every fourth tile.
template <typename P>
__device__ __forceinline__ void Load(const AttentionParams& params, uint32_t shared) {
  const int warp = static_cast<int>(threadIdx.x - kComputing) / 32;
  const int lane = threadIdx.x % 32;
  const int num_items = *params.num_items;
  bool may_read_new = false;
  uint32_t first = 0;  // tile of the item
#pragma unroll 1
  for (int idx = blockIdx.x; idx < num_items; idx += gridDim.x) {
    const HopperItem work(params, idx);
    const int num_tiles = work.num_tiles(kKeys);
    int tile = static_cast<int>((warp - first) % kLoadingWarps);
    int key = work.item.key_begin + tile * kKeys + lane % kKeys;
    int32_t page = work.PageOf(params, key);
#pragma unroll 1
    for (; tile < num_tiles; tile += kLoadingWarps, key += kLoadingWarps * kKeys) {
      const int64_t source = work.EntryAt(params, key, page, P::Form::kEntryLen);
      page = work.PageOf(params, key + kLoadingWarps * kKeys);  // on its way a tile ahead
      const int first_key = work.item.key_begin + tile * kKeys;
      if (!may_read_new && first_key + kKeys > work.sequence.num_cached) {
        WaitForPreviousKernel();
        may_read_new = true;
      }
      const uint32_t number = first + tile;
      AwaitBarrier(P::FreeAt(shared, number), P::ParityOf(number) ^ 1);
      const uint32_t stage = P::StageAt(shared, number);
      const int num_keys = min(kKeys, work.item.key_end - first_key);
      // P is 0 for the keys behind the last, but 0 times what lies there may be NaN.
      if (num_keys < kKeys) {
        for (int at = num_keys * P::kEntryStride + lane * 16; at < P::kStageBytes; at += 32 * 16) {
          asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stage + at), "r"(0)
                       : "memory");
        }
        PublishToCopies();
        __syncwarp();
      }
      const uint32_t here = P::HereAt(shared, number);
      if (lane == 0) ExpectBytes(here, num_keys * P::kEntryBytes);
      __syncwarp();
      if (lane < num_keys) {
        CopyBytes(reinterpret_cast<const void*>(source), stage + lane * P::kEntryStride,
                  P::kEntryBytes, here);
      }
    }
    first += num_tiles;
  }
  if (!may_read_new) WaitForPreviousKernel();
}

__device__ __forceinline__ void SyncComputing() {
  asm volatile("bar.sync 1, %0;" ::"n"(kComputing) : "memory");
}

// Queries of a warp's rows as the second operand of scores: steps of 16 dims.
template <typename P>
using Queries = uint32_t[P::Form::kKeyLen / 16][2];
// Sums of P V in blocks of 16 columns: columns g (in 0, 1) and g + 8 of rows 2 t (in 0, 2) and
// 2 t + 1, where g = lane / 4 and t = lane % 4.
template <typename P>
using Sums = float[P::Form::kValueLen / 16][4];

// All computing warps: the item's queries, through shared memory that is free until sums are
// joined.
template <typename P>
__device__ __forceinline__ void LoadQueries(const AttentionParams& params, const HopperItem& work,
                                            uint32_t shared, Queries<P>& queries) {
  constexpr int kKeyLen = P::Form::kKeyLen;
  constexpr int kStride = kKeyLen * 2 + 16;
  static_assert(kFewRows * kStride <= kComputingWarps * P::kJoinFloats * 4);
  constexpr int kPieces = kKeyLen / 8;
  const int num_rows = work.num_rows(params);
  const Shares<P> shares(num_rows);
#pragma unroll 1
  for (int piece = threadIdx.x; piece < shares.parts() * kWarpRows * kPieces; piece += kComputing) {
    const int row = piece / kPieces;
    const bool valid = row < num_rows;
    const bf16* const from = params.queries + (valid ? work.HeadRow(params, row) : 0) * kKeyLen;
    CopyAsync(shared + P::kJoinAt + row * kStride + piece % kPieces * 16,
              from + piece % kPieces * 8, valid);
  }
  CommitCopies();
  WaitForCopies<0>();
  SyncComputing();
  const int lane = threadIdx.x % 32;
  const int first_row = shares.PartOf(threadIdx.x / 32) * kWarpRows;
  const uint32_t at = shared + P::kJoinAt + (first_row + lane % 8) * kStride + lane / 8 * 16;
#pragma unroll
  for (int step = 0; step < kKeyLen / 16; step += 2) {
    uint32_t both[4];
    LoadMatrices(both, at + step * 32);
    queries[step][0] = both[0];
    queries[step][1] = both[1];
    queries[step + 1][0] = both[2];
    queries[step + 1][1] = both[3];
  }
}

// Scores of a tile: keys g (in 0, 1) and g + 8 of rows 2 t (in 0, 2) and 2 t + 1.
template <typename P>
__device__ __forceinline__ void MultiplyKeys(uint32_t entries, const Queries<P>& queries,
                                             float (&scores)[4]) {
  const int lane = threadIdx.x % 32;
  const uint32_t keys_at =
      entries + lane % 16 * P::kEntryStride + P::Form::kKeyOffset * 2 + lane / 16 * 16;
  float odd[4] = {};
#pragma unroll
  for (float& score : scores) score = 0.0f;
#pragma unroll
  for (int step = 0; step < P::Form::kKeyLen / 16; ++step) {
    uint32_t keys[4];
    LoadMatrices(keys, keys_at + step * 32);
    Mma(step % 2 == 0 ? scores : odd, keys, queries[step][0], queries[step][1]);
  }
#pragma unroll
  for (int idx = 0; idx < 4; ++idx) scores[idx] += odd[idx];
}

template <typename P>
__device__ __forceinline__ void AddValues(uint32_t entries, const uint32_t (&weights)[2],
                                          Sums<P>& sums) {
  const int lane = threadIdx.x % 32;
  const uint32_t values_at =
      entries + (lane / 16 * 8 + lane % 8) * P::kEntryStride + lane / 8 % 2 * 16;
#pragma unroll
  for (int block = 0; block < P::Form::kValueLen / 16; ++block) {
    uint32_t values[4];
    LoadMatricesTransposed(values, values_at + block * 32);
    Mma(sums[block], values, weights[0], weights[1]);
  }
}

// The largest of the lanes that share a row.
__device__ __forceinline__ float LargestOfRow(float value) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  return value;
}
__device__ __forceinline__ float SumOfRow(float value) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  return value;
}

template <typename P>
__device__ __forceinline__ void ScaleSums(Sums<P>& sums, float first, float second) {
#pragma unroll
  for (auto& block : sums) {
    block[0] *= first;
    block[1] *= second;
    block[2] *= first;
    block[3] *= second;
  }
}

// A tile's scores become P, relative to the maximum so far, and the second operand of values; the
// sums follow the maximum.
template <typename P>
__device__ __forceinline__ void Weigh(float (&scores)[4], SoftmaxRow (&rows)[2], Sums<P>& sums,
                                      uint32_t (&weights)[2]) {
  constexpr float kLog2e = 1.4426950408889634f;
  float shrink[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float highest = LargestOfRow(fmaxf(scores[half], scores[half + 2]));
    const float now = fmaxf(rows[half].maximum, highest * kLog2e);
    const float reference = now == -INFINITY ? 0.0f : now;
    shrink[half] = Exp2(rows[half].maximum - reference);
    rows[half].maximum = now;
    scores[half] = Exp2(__fmaf_rn(scores[half], kLog2e, -reference));
    scores[half + 2] = Exp2(__fmaf_rn(scores[half + 2], kLog2e, -reference));
    rows[half].sum = rows[half].sum * shrink[half] + (scores[half] + scores[half + 2]);
  }
  if (__any_sync(0xffffffff, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
    ScaleSums<P>(sums, shrink[0], shrink[1]);
  }
  weights[0] = TransposeMatrix(PackBf16x2(scores[0], scores[1]));
  weights[1] = TransposeMatrix(PackBf16x2(scores[2], scores[3]));
}

// What the warps of an item have summed becomes rows or partial results.
template <typename P>
__device__ __forceinline__ void JoinWarps(const AttentionParams& params, std::byte* memory,
                                          const HopperItem& work, SoftmaxRow (&rows)[2],
                                          Sums<P>& sums) {
  using Form = typename P::Form;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int num_rows = work.num_rows(params);
  const Shares<P> shares(num_rows);
  float* const maxima = reinterpret_cast<float*>(memory + P::kMaximaAt);
  float* const sums_of_weights = maxima + kComputingWarps * kWarpRows;
  float* const totals = reinterpret_cast<float*>(memory + P::kTotalsAt);
  float* const join = reinterpret_cast<float*>(memory + P::kJoinAt);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = SumOfRow(rows[half].sum);
    if (lane < 4) {
      maxima[warp * kWarpRows + lane * 2 + half] = rows[half].maximum;
      sums_of_weights[warp * kWarpRows + lane * 2 + half] = sum;
    }
  }
  SyncComputing();
  const auto maximum_of = [&](int part, int row) {
    float maximum = -INFINITY;
    for (int other = part; other < shares.warps(); other += shares.parts()) {
      maximum = fmaxf(maximum, maxima[other * kWarpRows + row]);
    }
    return maximum;
  };
  const auto weight_of = [&](float maximum, float total_maximum) {
    return Exp2(maximum - (total_maximum == -INFINITY ? 0.0f : total_maximum));
  };
  if (const int row = threadIdx.x; row < shares.parts() * kWarpRows) {
    const int part = row / kWarpRows;
    const float maximum = maximum_of(part, row % kWarpRows);
    float sum = 0.0f;
    for (int other = part; other < shares.warps(); other += shares.parts()) {
      const int at = other * kWarpRows + row % kWarpRows;
      sum += sums_of_weights[at] * weight_of(maxima[at], maximum);
    }
    totals[row] = maximum;
    totals[kFewRows + row] = sum;
  }
  const int part = shares.PartOf(warp);
  ScaleSums<P>(sums, weight_of(rows[0].maximum, maximum_of(part, lane % 4 * 2)),
               weight_of(rows[1].maximum, maximum_of(part, lane % 4 * 2 + 1)));

  const int row_tiles = (num_rows + kAttentionPartialRows - 1) / kAttentionPartialRows;
#pragma unroll
  for (int first = 0; first < Form::kValueLen; first += P::kJoinColumns) {
#pragma unroll
    for (int block = 0; block < P::kJoinColumns / 16; ++block) {
      float* const at =
          join + warp * P::kJoinFloats + lane % 4 * 2 * P::kJoinStride + block * 16 + lane / 4;
      const float(&own)[4] = sums[first / 16 + block];
      at[0] = own[0];
      at[P::kJoinStride] = own[1];
      at[8] = own[2];
      at[P::kJoinStride + 8] = own[3];
    }
    SyncComputing();
#pragma unroll 1
    for (int row = warp; row < num_rows; row += kComputingWarps) {
      const float* from =
          join + row / kWarpRows * P::kJoinFloats + row % kWarpRows * P::kJoinStride + lane * 4;
      float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
      for (int group = 0; group < shares.groups(); ++group) {
        const float4 own = *reinterpret_cast<const float4*>(from);
        total.x += own.x;
        total.y += own.y;
        total.z += own.z;
        total.w += own.w;
        from += shares.parts() * P::kJoinFloats;
      }
      const int column = first + lane * 4;
      if (work.item.num_splits == 1) {
        const float inverse = __frcp_rn(totals[kFewRows + row]);
        auto* const out = reinterpret_cast<__nv_bfloat162*>(
            params.out + work.HeadRow(params, row) * Form::kValueLen + Form::DimOf(column));
        out[0] = __floats2bfloat162_rn(total.x * inverse, total.y * inverse);
        out[1] = __floats2bfloat162_rn(total.z * inverse, total.w * inverse);
      } else {
        float* const slot =
            params.partials + int64_t{work.item.first_partial + work.item.split * row_tiles +
                                      row / kAttentionPartialRows} *
                                  Form::kSlotFloats;
        const int at = row % kAttentionPartialRows;
        *reinterpret_cast<float4*>(slot + at * Form::kValueLen + column) = total;
        if (first == 0 && lane == 0) {
          float* const tail = slot + kAttentionPartialRows * Form::kValueLen + at;
          tail[0] = totals[row];
          tail[kAttentionPartialRows] = totals[kFewRows + row];
        }
      }
    }
    SyncComputing();
  }
}

// Joins a range of a tile's splits if all others who are to arrive at the counter have done so;
// says whether.
template <typename P>
__device__ __forceinline__ bool JoinIfLast(const AttentionParams& params, const HopperItem& work,
                                           AttentionTask& task, int32_t* counter, int arrivals,
                                           SplitRange range, bool in_place) {
  __threadfence();
  SyncComputing();
  if (threadIdx.x == 0) {
    task.item = work.item;
    task.sequence = work.sequence;
    task.is_last_split = atomicAdd(counter, 1) == arrivals - 1;
  }
  SyncComputing();
  const bool is_last = task.is_last_split != 0;
  if (is_last) {
    __threadfence();
    MergeSplits<typename P::Form>(params, task, range, in_place);
    if (threadIdx.x == 0) *counter = 0;
  }
  SyncComputing();  // The task is out of use.
  return is_last;
}

// More splits than two groups of them are joined in two steps, so that several blocks share the
// reading: neighbours of a group, then what these have become.
constexpr int kSplitsOfGroup = 8;

template <typename P>
__device__ __forceinline__ void JoinSplits(const AttentionParams& params, const HopperItem& work,
                                           AttentionTask& task) {
  const int num_splits = work.item.num_splits;
  int32_t* const counters = params.counters + work.item.first_partial;
  if (num_splits <= 2 * kSplitsOfGroup) {
    JoinIfLast<P>(params, work, task, counters, num_splits,
                  {.first = 0, .count = num_splits, .stride = 1}, /*in_place=*/false);
    return;
  }
  const int group = work.item.split / kSplitsOfGroup;
  const int first = group * kSplitsOfGroup;
  const int count = min(kSplitsOfGroup, num_splits - first);
  if (JoinIfLast<P>(params, work, task, counters + 1 + group, count,
                    {.first = first, .count = count, .stride = 1}, /*in_place=*/true)) {
    const int num_groups = (num_splits + kSplitsOfGroup - 1) / kSplitsOfGroup;
    JoinIfLast<P>(params, work, task, counters, num_groups,
                  {.first = 0, .count = num_groups, .stride = kSplitsOfGroup}, /*in_place=*/false);
  }
}

// One of the computing warps.
template <typename P>
__device__ __forceinline__ void Compute(const AttentionParams& params, std::byte* memory,
                                        uint32_t shared) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int num_items = *params.num_items;
  uint32_t first = 0;  // tile of the item
  if (static_cast<int>(blockIdx.x) >= num_items) WaitForPreviousKernel();
#pragma unroll 1
  for (int idx = blockIdx.x; idx < num_items; idx += gridDim.x) {
    Queries<P> queries;
    int key_begin;
    int num_tiles;
    int all_begin;  // keys that all rows see
    int all_end;
    int num_rows;
    {
      const HopperItem work(params, idx);
      num_rows = work.num_rows(params);
      if (idx == blockIdx.x) WaitForPreviousKernel();
      LoadQueries<P>(params, work, shared, queries);
      key_begin = work.item.key_begin;
      num_tiles = work.num_tiles(kKeys);
      all_begin = KeysOfRow<P::Form::kValueLen>(params, work, num_rows - 1).begin;
      all_end = KeysOfRow<P::Form::kValueLen>(params, work, 0).end;
    }
    const Shares<P> shares(num_rows);
    const int first_row = shares.PartOf(warp) * kWarpRows;
    Sums<P> sums = {};
    SoftmaxRow rows[2];
    // Tile n is for group n % groups, whatever item it is of.
    const int groups = shares.groups();
    const int first_tile = static_cast<int>((shares.GroupOf(warp) - first) % groups);
    const int end_tile = warp < shares.warps() ? num_tiles : 0;
#pragma unroll 1
    for (int tile = first_tile; tile < end_tile; tile += groups) {
      const uint32_t number = first + tile;
      AwaitBarrier(P::HereAt(shared, number), P::ParityOf(number));
      if (first_row < num_rows) {
        const uint32_t entries = P::StageAt(shared, number);
        float scores[4];
        MultiplyKeys<P>(entries, queries, scores);
        const int first_key = key_begin + tile * kKeys;
        if (first_key < all_begin || first_key + kKeys > all_end) {
          const HopperItem work(params, idx);
          const int row = first_row + lane % 4 * 2;
          const VisibleKeys visible[2] = {KeysOfRow<P::Form::kValueLen>(params, work, row),
                                          KeysOfRow<P::Form::kValueLen>(params, work, row + 1)};
#pragma unroll
          for (int at = 0; at < 4; ++at) {
            const int key = first_key + lane / 4 + at / 2 * 8;
            if (key < visible[at % 2].begin || key >= visible[at % 2].end) scores[at] = -INFINITY;
          }
        }
        uint32_t weights[2];
        Weigh<P>(scores, rows, sums, weights);
        AddValues<P>(entries, weights, sums);
      }
      __syncwarp();
      if (lane == 0) ArriveAtBarrier(P::FreeAt(shared, number), kMaxParts >> shares.shift);
    }
    first += num_tiles;
    const HopperItem work(params, idx);
    JoinWarps<P>(params, memory, work, rows, sums);
    if (work.item.num_splits > 1) {
      JoinSplits<P>(params, work, *reinterpret_cast<AttentionTask*>(memory + P::kTaskAt));
    }
  }
}

template <typename P>
__global__ void __launch_bounds__(kThreads, 1)
    AttentionOfFewRows(const __grid_constant__ AttentionParams params) {
  extern __shared__ __align__(1024) std::byte memory[];
  const uint32_t shared = SharedAddress(memory);
  AllowNextKernel();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < P::kStages; ++stage) {
      InitBarrier(P::HereAt(shared, stage), 1);
      InitBarrier(P::FreeAt(shared, stage), kMaxParts);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x >= kComputing) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    Load<P>(params, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Compute<P>(params, memory, shared);
  }
}

template <int kValueLen, int kKeyOffset>
void LaunchForm(const LaunchContext& context, const AttentionParams& params) {
  using P = Plan<AttentionForm<kValueLen, kKeyOffset, kValueLen, 2, 1>>;
  Launch(context, AttentionOfFewRows<P>, dim3(context.Device().num_sms), dim3(kThreads),
         P::kSharedBytes, params);
}

}  // namespace

void RunHopperAttentionOfFewRows(const LaunchContext& context, const AttentionParams& params,
                                 const KvEntryPlan& entry) {
  if (entry.value_len == 256) {
    LaunchForm<256, 256>(context, params);
  } else if (entry.k_is_v()) {
    LaunchForm<512, 128>(context, params);
  } else {
    LaunchForm<512, 512>(context, params);
  }
}

}  // namespace lapidary::cuda
