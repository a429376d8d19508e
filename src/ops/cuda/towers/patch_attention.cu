// A block has 128 queries of one head, 64 to a warpgroup, and walks over the picture's keys in
// tiles of 64 or 48. Keys and values come in boxes (TMA) through a ring of stages, asked for by one
// of the threads that compute. A warpgroup's queries stay in its registers, and its weights go from
// the first product to the second there:
//   weights of a tile; then its values and the scores of the next tile (wgmma), both under way.
// Two blocks share an SM: four warpgroups, of which some multiply while others weigh.
#include "base/check.h"
#include "ops/cuda/linear/narrow_map.h"
#include "ops/cuda/linear/tensor_map.h"
#include "ops/cuda/ptx/tma.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/ptx/wgmma_registers.cuh"
#include "ops/cuda/towers/patch_attention.h"
#include "ops/cuda/towers/tower_row.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kGroups = 2;  // of 64 queries, a warpgroup each
constexpr int kThreads = kGroups * kWarpgroupThreads;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kStages = 5;
// A stage is filled again so many tiles after it was used: the groups need not keep step.
constexpr int kLag = 2;
static_assert(kGroups * kWarpgroupRows == kPatchTileRows);

// Heads of up to 64 dims, or with a tail of up to 16 more.
template <bool kHasTailValue>
struct PatchForm {
  static constexpr bool kHasTail = kHasTailValue;
  static constexpr int kSteps = kHasTail ? 5 : 4;   // of 16 dims
  static constexpr int kKeys = kHasTail ? 48 : 64;  // of a tile; what more would need spills
  static constexpr int kRunBytes = kKeys * kHeadRun * 2;
  static constexpr int kTailBytes = kHasTail ? kKeys * kHeadTail * 2 : 0;
  // A stage: runs of keys, of values, then their tails.
  static constexpr int kStageBytes = 2 * (kRunBytes + kTailBytes);
  static constexpr int kStagesAt = 1024;  // behind the barriers
  static constexpr int kSharedBytes = kStagesAt + kStages * kStageBytes;
  static_assert(kStageBytes % 1024 == 0 && kRunBytes % 1024 == 0);
};

// Rows of heads in boxes of a tile of keys.
struct PatchMaps {
  CUtensorMap run;   // [3 * num_heads * rows, 64]
  CUtensorMap tail;  // [3 * num_heads * rows, 16]
};

// Of one head: rows of queries, keys and values among all [3, num_heads, rows].
struct HeadRows {
  int64_t queries;
  int64_t keys;
  int64_t values;

  __device__ HeadRows(const PatchAttentionCall& call, int head)
      : queries(int64_t{head} * call.rows),
        keys(int64_t{call.num_heads + head} * call.rows),
        values(int64_t{2 * call.num_heads + head} * call.rows) {}
};

template <typename Form>
class PatchTiles {
 public:
  __device__ PatchTiles(const PatchMaps& maps, const HeadRows& head, const PatchTile& tile,
                        uint32_t shared)
      : maps_(maps),
        first_key_(static_cast<int>(head.keys) + tile.begin),
        first_value_(static_cast<int>(head.values) + tile.begin),
        shared_(shared) {}

  __device__ __forceinline__ uint32_t Here(int stage) const { return shared_ + stage * 16; }
  __device__ __forceinline__ uint32_t Free(int stage) const { return shared_ + stage * 16 + 8; }
  __device__ __forceinline__ uint32_t Stage(int stage) const {
    return shared_ + Form::kStagesAt + stage * Form::kStageBytes;
  }

  __device__ void Init() const {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(Here(stage), 1);
      InitBarrier(Free(stage), kWarps);
    }
    PublishBarriers();
  }
  // One thread. Rows behind the picture's last belong to others, or are zeros: they get no weight.
  __device__ void Load(int tile) const {
    const int stage = tile % kStages;
    const int round = tile / kStages;
    if (round > 0) AwaitBarrier(Free(stage), (round - 1) & 1);
    ExpectBytes(Here(stage), Form::kStageBytes);
    Copy(first_key_ + tile * Form::kKeys, Stage(stage), 0, Here(stage));
    Copy(first_value_ + tile * Form::kKeys, Stage(stage), 1, Here(stage));
  }

 private:
  __device__ void Copy(int row, uint32_t stage_at, int part, uint32_t barrier) const {
    CopyBox(maps_.run, row, 0, stage_at + part * Form::kRunBytes, barrier, BoxUse::kNormal);
    if constexpr (Form::kHasTail) {
      CopyBox(maps_.tail, row, 0, stage_at + 2 * Form::kRunBytes + part * Form::kTailBytes, barrier,
              BoxUse::kNormal);
    }
  }

  const PatchMaps& maps_;
  const int first_key_;
  const int first_value_;
  const uint32_t shared_;
};

// A lane's part of the 64 queries of a warpgroup: rows g and g + 8 of a warp's 16.
template <typename Form>
class PatchGroup {
  static constexpr int kKeys = Form::kKeys;

 public:
  __device__ __forceinline__ void LoadQueries(const bf16* heads, const bf16* tails, int64_t row,
                                              int64_t row_below) {
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int step = 0; step < Form::kSteps; ++step) {
      const bool is_tail = step * 16 >= kHeadRun;
      const int width = is_tail ? kHeadTail : kHeadRun;
      const bf16* const from = (is_tail ? tails : heads) + step * 16 % kHeadRun + column;
      const auto* const high = reinterpret_cast<const uint32_t*>(from + row * width);
      const auto* const low = reinterpret_cast<const uint32_t*>(from + row_below * width);
      queries_[step][0] = high[0];
      queries_[step][1] = low[0];
      queries_[step][2] = high[4];
      queries_[step][3] = low[4];
    }
  }

  __device__ __forceinline__ void StartScores(uint32_t stage_at) {
    const uint64_t operand = SwizzledOperand(stage_at);
    WgmmaBegin();
    WgmmaOfRegisters<kKeys, false>::Set(scores_, queries_[0], operand);
#pragma unroll
    for (int step = 1; step < 4; ++step) {
      WgmmaOfRegisters<kKeys, false>::Add(scores_, queries_[step], operand + step * 2);
    }
    if constexpr (Form::kHasTail) {
      WgmmaOfRegisters<kKeys, false>::Add(scores_, queries_[4],
                                          NarrowOperand(stage_at + 2 * Form::kRunBytes));
    }
    WgmmaCommit();
  }
  __device__ __forceinline__ void StartValues(uint32_t stage_at) {
    const uint64_t run = TransposedOperand(stage_at + Form::kRunBytes, Form::kRunBytes);
    const uint64_t tail = NarrowOperand(stage_at + 2 * Form::kRunBytes + Form::kTailBytes);
    WgmmaBegin();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      WgmmaOfRegisters<kHeadRun, true>::Add(sums_, weights_[step],
                                            run + step * (16 * kHeadRun * 2 / 16));
      if constexpr (Form::kHasTail) {
        WgmmaOfRegisters<kHeadTail, true>::Add(tail_sums_, weights_[step],
                                               tail + step * (16 * kHeadTail * 2 / 16));
      }
    }
    WgmmaCommit();
  }
  __device__ __forceinline__ void Finish() {
    WgmmaWait<0>();
    WgmmaKeep(scores_);
    WgmmaKeep(sums_);
    if constexpr (Form::kHasTail) WgmmaKeep(tail_sums_);
  }

  // Keys from `end` on, counted from the tile's first, get no weight.
  __device__ __forceinline__ void Mask(int end) {
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int idx = 0; idx < kKeys / 2; ++idx) {
      if (idx / 4 * 8 + column + idx % 2 >= end) scores_[idx] = -INFINITY;
    }
  }

  // Scores become weights, relative to a reference that moves only where a row's maximum has
  // outgrown it: sums shrink seldom, and no weight is above 2^kMaxGrowth.
  __device__ __forceinline__ void Weigh() {
    constexpr float kLog2e = 1.4426950408889634f;
    constexpr float kMaxGrowth = 6.0f;
    float shrink[2];
    bool shrinks = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = -INFINITY;
#pragma unroll
      for (int idx = 2 * half; idx < kKeys / 2; idx += 4) {
        highest = fmaxf(highest, fmaxf(scores_[idx], scores_[idx + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
      highest = kLog2e * fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
      const float before = references_[half];
      // The first key of a tile exists, so the first reference is a number.
      const float now = highest > before + kMaxGrowth ? highest : before;
      shrinks |= now != before;
      shrink[half] = Exp2(before - now);
      references_[half] = now;
      float total = 0.0f;
#pragma unroll
      for (int block = 0; block < kKeys / 8; ++block) {
        const float low = Exp2(__fmaf_rn(scores_[4 * block + 2 * half], kLog2e, -now));
        const float high = Exp2(__fmaf_rn(scores_[4 * block + 2 * half + 1], kLog2e, -now));
        total += low + high;
        weights_[block / 2][block % 2 * 2 + half] = PackBf16x2(low, high);
      }
      totals_[half] = totals_[half] * shrink[half] + total;
    }
    if (__any_sync(0xffffffff, shrinks)) {
#pragma unroll
      for (int idx = 0; idx < kHeadRun / 2; ++idx) sums_[idx] *= shrink[idx / 2 % 2];
#pragma unroll
      for (int idx = 0; idx < kHeadTail / 2; ++idx) tail_sums_[idx] *= shrink[idx / 2 % 2];
    }
  }

  // `row` of all rows, and the one 8 below it.
  __device__ __forceinline__ void Store(const PatchAttentionCall& call, int head, int row,
                                        int end) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = totals_[half];
      total += __shfl_xor_sync(0xffffffff, total, 1);
      total += __shfl_xor_sync(0xffffffff, total, 2);
      if (row + 8 * half >= end) continue;
      const float inverse = __frcp_rn(total);
      bf16* const out =
          call.out + (int64_t{row + 8 * half} * call.num_heads + head) * call.head_dim;
#pragma unroll
      for (int block = 0; block < 2 * Form::kSteps; ++block) {
        const int column = block * 8 + static_cast<int>(threadIdx.x % 4) * 2;
        if (column >= call.head_dim) continue;
        const bool is_tail = block * 8 >= kHeadRun;
        const int at = (is_tail ? block - kHeadRun / 8 : block) * 4 + 2 * half;
        const float low = is_tail ? tail_sums_[at % (kHeadTail / 2)] : sums_[at];
        const float high = is_tail ? tail_sums_[at % (kHeadTail / 2) + 1] : sums_[at + 1];
        *reinterpret_cast<uint32_t*>(out + column) = PackBf16x2(
            Clamp(low * inverse, call.out_bounds), Clamp(high * inverse, call.out_bounds));
      }
    }
  }

 private:
  uint32_t queries_[Form::kSteps][4];
  uint32_t weights_[kKeys / 16][4];
  float scores_[kKeys / 2];
  float sums_[kHeadRun / 2] = {};
  float tail_sums_[kHeadTail / 2] = {};
  float references_[2] = {-INFINITY, -INFINITY};
  float totals_[2] = {};  // this lane's part
};

template <typename Form>
__global__ void __launch_bounds__(kThreads, 2)
    PatchAttentionKernel(const __grid_constant__ PatchAttentionCall call,
                         const __grid_constant__ PatchMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const PatchTile tile = call.tiles[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y);
  const HeadRows rows(call, head);
  const PatchTiles<Form> tiles(maps, rows, tile, SharedAddress(shared_bytes));
  constexpr int kKeys = Form::kKeys;
  const int num_tiles = (tile.end - tile.begin + kKeys - 1) / kKeys;
  AllowNextKernel();
  if (threadIdx.x == 0) tiles.Init();
  __syncthreads();
  WaitForPreviousKernel();
  if (threadIdx.x == 0) {
    for (int idx = 0; idx < min(kStages, num_tiles); ++idx) tiles.Load(idx);
  }

  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int row = tile.first_query + warp * 16 + lane / 4;
  PatchGroup<Form> group;
  group.LoadQueries(call.heads, call.tails(), rows.queries + min(row, tile.end - 1),
                    rows.queries + min(row + 8, tile.end - 1));
  RingPosition stage;
  AwaitBarrier(tiles.Here(0), 0);
  group.StartScores(tiles.Stage(0));
  group.Finish();
#pragma unroll 1
  for (int idx = 0; idx < num_tiles; ++idx) {
    if ((idx + 1) * kKeys > tile.end - tile.begin) group.Mask(tile.end - tile.begin - idx * kKeys);
    group.Weigh();
    const int next_load = idx + kStages - kLag;
    if (warp == 0 && idx >= kLag && next_load < num_tiles) {
      if (lane == 0) tiles.Load(next_load);
      __syncwarp();
    }
    group.StartValues(tiles.Stage(stage.slot));
    const int used = stage.slot;
    stage.Advance(kStages);
    if (idx + 1 < num_tiles) {
      AwaitBarrier(tiles.Here(stage.slot), stage.parity);
      group.StartScores(tiles.Stage(stage.slot));
    }
    group.Finish();
    if (lane == 0) ArriveAtBarrier(tiles.Free(used));
  }
  group.Store(call, head, row, tile.end);
}

template <bool kHasTail>
void LaunchForm(const LaunchContext& context, const PatchAttentionCall& call) {
  using Form = PatchForm<kHasTail>;
  const int head_rows = 3 * call.num_heads * call.rows;
  PatchMaps maps{.run = MakeSwizzledMap(call.heads, head_rows, kHeadRun, Form::kKeys), .tail = {}};
  if (kHasTail) maps.tail = MakeNarrowMap(call.tails(), head_rows, Form::kKeys);
  Launch(context, PatchAttentionKernel<Form>, dim3(call.num_tiles, call.num_heads), dim3(kThreads),
         Form::kSharedBytes, call, maps);
}

}  // namespace

void RunPatchAttention(const LaunchContext& context, const PatchAttentionCall& call) {
  CHECK_OK(PatchAttentionSupports(call.head_dim));
  if (call.head_dim > kHeadRun) {
    LaunchForm<true>(context, call);
  } else {
    LaunchForm<false>(context, call);
  }
}

}  // namespace lapidary::cuda
