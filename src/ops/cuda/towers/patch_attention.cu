// A block has 128 queries of one head, 64 to a warpgroup, and walks over the picture's keys in
// tiles of 80. Queries, and keys and values through a ring of stages, come in boxes (TMA) that one
// of the threads that compute asks for. A warpgroup's weights go from the first product to the
// second in its registers:
//   weights of a tile; then its values and the scores of the next tile (wgmma), both under way.
// Two blocks share an SM: four warpgroups, of which some multiply while others weigh.
#include "base/check.h"
#include "ops/cuda/linear/narrow_map.h"
#include "ops/cuda/linear/tensor_map.h"
#include "ops/cuda/ptx/tma.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/ptx/wgmma_forms.cuh"
#include "ops/cuda/towers/patch_attention.h"
#include "ops/cuda/towers/tower_row.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kGroups = 2;  // of 64 queries, a warpgroup each
constexpr int kThreads = kGroups * kWarpgroupThreads;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kStages = 3;
// A stage is filled again so many tiles after it was used: the groups need not keep step.
constexpr int kLag = 1;
static_assert(kGroups * kWarpgroupRows == kPatchTileRows);

// Heads of up to 64 dims, or with a tail of up to 16 more.
template <bool kHasTailValue>
struct PatchForm {
  static constexpr bool kHasTail = kHasTailValue;
  static constexpr int kSteps = kHasTail ? 5 : 4;  // of 16 dims
  static constexpr int kKeys = 80;                 // of a tile; what more would need spills
  static constexpr int kRunBytes = kKeys * kHeadRun * 2;
  static constexpr int kTailBytes = kHasTail ? kKeys * kHeadTail * 2 : 0;
  // A stage: runs of keys, of values, then their tails.
  static constexpr int kStageBytes = 2 * (kRunBytes + kTailBytes);
  // Behind the barriers: runs of the queries, their tails, then the stages.
  static constexpr int kQueriesAt = 1024;
  static constexpr int kGroupRunBytes = kWarpgroupRows * kHeadRun * 2;
  static constexpr int kGroupTailBytes = kHasTail ? kWarpgroupRows * kHeadTail * 2 : 0;
  static constexpr int kQueryTailsAt = kQueriesAt + kGroups * kGroupRunBytes;
  static constexpr int kQueryBytes = kGroups * (kGroupRunBytes + kGroupTailBytes);
  static constexpr int kStagesAt = kQueriesAt + kQueryBytes;
  static constexpr int kSharedBytes = kStagesAt + kStages * kStageBytes;
  static_assert(kStagesAt % 1024 == 0 && kStageBytes % 1024 == 0 && kRunBytes % 1024 == 0);
};

// Rows of heads, [3 * num_heads * rows, 64] and [3 * num_heads * rows, 16], in boxes of a tile of
// queries or of keys.
struct PatchMaps {
  CUtensorMap query_runs;
  CUtensorMap query_tails;
  CUtensorMap key_runs;
  CUtensorMap key_tails;
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
        first_query_(static_cast<int>(head.queries) + tile.first_query),
        first_key_(static_cast<int>(head.keys) + tile.begin),
        first_value_(static_cast<int>(head.values) + tile.begin),
        shared_(shared) {}

  __device__ __forceinline__ uint32_t Here(int stage) const { return shared_ + stage * 16; }
  __device__ __forceinline__ uint32_t Free(int stage) const { return shared_ + stage * 16 + 8; }
  __device__ __forceinline__ uint32_t Stage(int stage) const {
    return shared_ + Form::kStagesAt + stage * Form::kStageBytes;
  }

  __device__ __forceinline__ uint32_t QueriesHere() const { return shared_ + kStages * 16; }

  __device__ void Init() const {
    InitBarrier(QueriesHere(), 1);
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(Here(stage), 1);
      InitBarrier(Free(stage), kWarps);
    }
    PublishBarriers();
  }
  // One thread loads. Rows behind the picture's last belong to others, or are zeros: as queries
  // they are not stored, as keys they get no weight.
  __device__ void LoadQueries() const {
    ExpectBytes(QueriesHere(), Form::kQueryBytes);
    CopyBox(maps_.query_runs, first_query_, 0, shared_ + Form::kQueriesAt, QueriesHere(),
            BoxUse::kNormal);
    if constexpr (Form::kHasTail) {
      CopyBox(maps_.query_tails, first_query_, 0, shared_ + Form::kQueryTailsAt, QueriesHere(),
              BoxUse::kNormal);
    }
  }
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
    CopyBox(maps_.key_runs, row, 0, stage_at + part * Form::kRunBytes, barrier, BoxUse::kNormal);
    if constexpr (Form::kHasTail) {
      CopyBox(maps_.key_tails, row, 0, stage_at + 2 * Form::kRunBytes + part * Form::kTailBytes,
              barrier, BoxUse::kNormal);
    }
  }

  const PatchMaps& maps_;
  const int first_query_;
  const int first_key_;
  const int first_value_;
  const uint32_t shared_;
};

// A lane's part of the 64 queries of a warpgroup: rows g and g + 8 of a warp's 16.
template <typename Form>
class PatchGroup {
  static constexpr int kKeys = Form::kKeys;

 public:
  __device__ explicit PatchGroup(uint32_t shared)
      : runs_(SwizzledOperand(shared + Form::kQueriesAt + Group() * Form::kGroupRunBytes)),
        tail_(NarrowOperand(shared + Form::kQueryTailsAt + Group() * Form::kGroupTailBytes)) {}

  __device__ __forceinline__ void StartScores(uint32_t stage_at) {
    const uint64_t keys = SwizzledOperand(stage_at);
    WgmmaBegin();
    WgmmaOfShared<kKeys>::Set(scores_, runs_, keys);
#pragma unroll
    for (int step = 1; step < 4; ++step) {
      WgmmaOfShared<kKeys>::Add(scores_, runs_ + step * 2, keys + step * 2);
    }
    if constexpr (Form::kHasTail) {
      WgmmaOfShared<kKeys>::Add(scores_, tail_, NarrowOperand(stage_at + 2 * Form::kRunBytes));
    }
    WgmmaCommit();
  }
  __device__ __forceinline__ void StartValues(uint32_t stage_at) {
    const uint64_t run = TransposedOperand(stage_at + Form::kRunBytes, Form::kRunBytes);
    const uint64_t tail = NarrowOperand(stage_at + 2 * Form::kRunBytes + Form::kTailBytes);
    WgmmaBegin();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      WgmmaOfRegisters<kHeadRun>::Add(sums_, weights_[step], run + step * (16 * kHeadRun * 2 / 16));
      if constexpr (Form::kHasTail) {
        WgmmaOfRegisters<kHeadTail>::Add(tail_sums_, weights_[step],
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
  __device__ static uint32_t Group() { return threadIdx.x / kWarpgroupThreads; }

  const uint64_t runs_;  // operands of this group's queries
  const uint64_t tail_;
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
    tiles.LoadQueries();
    for (int idx = 0; idx < min(kStages, num_tiles); ++idx) tiles.Load(idx);
  }

  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int row = tile.first_query + warp * 16 + lane / 4;
  PatchGroup<Form> group(SharedAddress(shared_bytes));
  RingPosition stage;
  AwaitBarrier(tiles.QueriesHere(), 0);
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
  PatchMaps maps{.query_runs = MakeSwizzledMap(call.heads, head_rows, kHeadRun, kPatchTileRows),
                 .query_tails = {},
                 .key_runs = MakeSwizzledMap(call.heads, head_rows, kHeadRun, Form::kKeys),
                 .key_tails = {}};
  if (kHasTail) {
    maps.query_tails = MakeNarrowMap(call.tails(), head_rows, kPatchTileRows);
    maps.key_tails = MakeNarrowMap(call.tails(), head_rows, Form::kKeys);
  }
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
