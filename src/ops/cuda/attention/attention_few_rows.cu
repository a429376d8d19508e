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

#include "ops/cuda/attention/attention_few_rows.cuh"
#include "ops/cuda/attention/attention_few_rows_join.cuh"

namespace lapidary::cuda {
namespace few_rows {
namespace {

// One of the loading warps: every fourth tile.
template <typename P>
__device__ __forceinline__ void Load(const AttentionParams& params, uint32_t shared) {
  const int warp = static_cast<int>(threadIdx.x - kComputing) / 32;
  const int lane = threadIdx.x % 32;
  // The first item is read before it is known whether there are so many: one wait less.
  AttentionItem item = params.items[blockIdx.x];
  const int num_items = *params.num_items;
  bool may_read_new = false;
  uint32_t first = 0;  // tile of the item
#pragma unroll 1
  for (int idx = blockIdx.x; idx < num_items; idx += gridDim.x) {
    if (idx != blockIdx.x) item = params.items[idx];
    const HopperItem work(params, item);
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
      // Every lane arrives, here and where a stage is given back: racecheck follows only a thread's
      // own arrivals.
      const uint32_t here = P::HereAt(shared, number);
      if (lane == 0) {
        ExpectBytes(here, num_keys * P::kEntryBytes);
      } else {
        ArriveAtBarrier(here);
      }
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

// All computing warps: the item's queries, through shared memory that is free until sums are
// joined.
template <typename P>
__device__ __forceinline__ void LoadQueries(const AttentionParams& params, const FewRowsTask& task,
                                            uint32_t shared, Queries<P>& queries) {
  constexpr int kKeyLen = P::Form::kKeyLen;
  constexpr int kStride = kKeyLen * 2 + 16;
  static_assert(kMaxParts * kWarpRows * kStride <= kComputingWarps * P::kJoinFloats * 4);
  constexpr int kPieces = kKeyLen / 8;
  const int num_rows = task.num_rows;
  const Shares<P> shares(num_rows);
#pragma unroll 1
  for (int piece = threadIdx.x; piece < shares.parts() * kWarpRows * kPieces; piece += kComputing) {
    const int row = piece / kPieces;
    const bool valid = row < num_rows;
    const bf16* const from =
        params.queries + (valid ? task.work.HeadRow(params, row) : 0) * kKeyLen;
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

// Thread 0 makes out what is to do; the computing warps meet afterwards.
template <typename P>
__device__ __forceinline__ void BeginItem(const AttentionParams& params, int idx,
                                          FewRowsTask& task) {
  if (threadIdx.x != 0) return;
  constexpr int kValueLen = P::Form::kValueLen;
  const HopperItem work(params, idx);
  task.work = work;
  task.num_rows = work.num_rows(params);
  task.first_tile = task.end_tile;
  task.end_tile += work.num_tiles(kKeys);
  task.key_of_tile_0 = work.item.key_begin - static_cast<int>(task.first_tile) * kKeys;
  task.seen_by_all = {KeysOfRow<kValueLen>(params, work, task.num_rows - 1).begin,
                      KeysOfRow<kValueLen>(params, work, 0).end};
}

// One of the computing warps.
template <typename P>
__device__ __forceinline__ void Compute(const AttentionParams& params, std::byte* memory,
                                        uint32_t shared) {
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  auto& task = *reinterpret_cast<FewRowsTask*>(memory + P::kTaskAt);
  if (threadIdx.x == 0) task.end_tile = 0;
  if (static_cast<int>(blockIdx.x) >= *params.num_items) WaitForPreviousKernel();
#pragma unroll 1
  for (int idx = blockIdx.x; idx < *params.num_items; idx += gridDim.x) {
    BeginItem<P>(params, idx, task);
    if (idx == blockIdx.x) WaitForPreviousKernel();
    SyncComputing();
    Queries<P> queries;
    LoadQueries<P>(params, task, shared, queries);
    const Shares<P> shares(task.num_rows);
    Sums<P> sums = {};
    SoftmaxRow rows[2];
    // Tile n is for group n % groups, whatever item it is of.
    const uint32_t groups = shares.groups();
    uint32_t tile = task.first_tile + (shares.GroupOf(warp) - task.first_tile) % groups;
    if (warp >= shares.warps()) tile = task.end_tile;
#pragma unroll 1
    for (; tile < task.end_tile; tile += groups) {
      AwaitBarrier(P::HereAt(shared, tile), P::ParityOf(tile));
      const uint32_t entries = P::StageAt(shared, tile);
      float scores[4];
      MultiplyKeys<P>(entries, queries, scores);
      const int first_key = task.key_of_tile_0 + static_cast<int>(tile) * kKeys;
      if (first_key < task.seen_by_all.begin || first_key + kKeys > task.seen_by_all.end) {
        const int row = shares.PartOf(warp) * kWarpRows + lane % 4 * 2;
        const int key = first_key + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const VisibleKeys visible = KeysOfRow<P::Form::kValueLen>(params, task.work, row + half);
          if (key < visible.begin || key >= visible.end) scores[half] = -INFINITY;
          if (key + 8 < visible.begin || key + 8 >= visible.end) scores[half + 2] = -INFINITY;
        }
      }
      uint32_t weights[2];
      Weigh<P>(scores, rows, sums, weights);
      AddValues<P>(entries, weights, sums);
      ArriveAtBarrier(P::FreeAt(shared, tile), kMaxParts >> shares.shift);
    }
    JoinWarps<P>(params, memory, task, rows, sums);
    if (task.work.item.num_splits > 1) JoinSplits<P>(params, task);
    SyncComputing();  // The task is out of use.
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
      InitBarrier(P::HereAt(shared, stage), 32);
      InitBarrier(P::FreeAt(shared, stage), 32 * kMaxParts);
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
}  // namespace few_rows

void RunHopperAttentionOfFewRows(const LaunchContext& context, const AttentionParams& params,
                                 const KvEntryPlan& entry) {
  if (entry.value_len == 256) {
    few_rows::LaunchForm<256, 256>(context, params);
  } else if (entry.k_is_v()) {
    few_rows::LaunchForm<512, 128>(context, params);
  } else {
    few_rows::LaunchForm<512, 512>(context, params);
  }
}

}  // namespace lapidary::cuda
