// A block has 128 queries of one head, 64 to a warpgroup, and walks over the picture's keys in
// tiles of 80. Queries, and keys and values through a ring of stages, come in boxes (TMA) that one
// of the threads that compute asks for. A warpgroup's weights go from the first product to the
// second in its registers:
//   weights of a tile; then its values and the scores of the next tile (wgmma), both under way.
// Two blocks share an SM: four warpgroups, of which some multiply while others weigh. Blocks that
// would be left for a last round are clusters instead, whose blocks share the keys
// (SplitLastBlocks): each has sums of its part, and the first adds them in their order.
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
  // Values that a thread has of its queries in the end: references, totals, sums.
  static constexpr int kKept = 4 + kHeadRun / 2 + (kHasTail ? kHeadTail / 2 : 0);
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

  // What a block of a cluster tells the first, in shared memory: [kKept, threads].
  __device__ __forceinline__ void Publish(float* to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to[half * kThreads] = references_[half];
      to[(2 + half) * kThreads] = totals_[half];
    }
#pragma unroll
    for (int idx = 0; idx < kHeadRun / 2; ++idx) to[(4 + idx) * kThreads] = sums_[idx];
    if constexpr (Form::kHasTail) {
#pragma unroll
      for (int idx = 0; idx < kHeadTail / 2; ++idx) {
        to[(4 + kHeadRun / 2 + idx) * kThreads] = tail_sums_[idx];
      }
    }
  }
  // What was summed has no weight beside anything else.
  __device__ __forceinline__ void Forget() { references_[0] = references_[1] = -INFINITY; }
  // Adds what the same thread of another block has published there.
  __device__ __forceinline__ void AddPublished(uint32_t at) {
    const auto load = [&](int idx) { return LoadFromBlock(at + idx * kThreads * 4); };
    float mine[2];
    float theirs[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float their_reference = load(half);
      const float now = fmaxf(references_[half], their_reference);
      // Two may both be idle, and their references no numbers.
      mine[half] = references_[half] == now ? 1.0f : Exp2(references_[half] - now);
      theirs[half] = their_reference == now ? 1.0f : Exp2(their_reference - now);
      references_[half] = now;
      totals_[half] = totals_[half] * mine[half] + load(2 + half) * theirs[half];
    }
#pragma unroll
    for (int idx = 0; idx < kHeadRun / 2; ++idx) {
      sums_[idx] = sums_[idx] * mine[idx / 2 % 2] + load(4 + idx) * theirs[idx / 2 % 2];
    }
    if constexpr (Form::kHasTail) {
#pragma unroll
      for (int idx = 0; idx < kHeadTail / 2; ++idx) {
        tail_sums_[idx] = tail_sums_[idx] * mine[idx / 2 % 2] +
                          load(4 + kHeadRun / 2 + idx) * theirs[idx / 2 % 2];
      }
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

// The keys of a tile that block `rank` of kBlocks has: whole tiles of keys. One that would have
// none takes the first, lest the loop have no round, and forgets it (`is_idle`).
template <int kBlocks>
__device__ __forceinline__ PatchTile PartOf(const PatchTile& tile, int keys_of_tile, int rank,
                                            bool* is_idle) {
  if (kBlocks == 1) return tile;
  const int num_tiles = (tile.end - tile.begin + keys_of_tile - 1) / keys_of_tile;
  const int first = num_tiles * rank / kBlocks;
  const int last = num_tiles * (rank + 1) / kBlocks;
  *is_idle = first == last;
  return {tile.first_query, tile.begin + first * keys_of_tile,
          min(tile.end, tile.begin + max(last, first + 1) * keys_of_tile)};
}

// Blocks from `first_block` of [num_tiles, num_heads] on, each one of a cluster of kBlocks.
template <typename Form, int kBlocks>
__global__ void __launch_bounds__(kThreads, 2)
    PatchAttentionKernel(const __grid_constant__ PatchAttentionCall call,
                         const __grid_constant__ PatchMaps maps, int first_block) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const int block = first_block + static_cast<int>(blockIdx.x) / kBlocks;
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int head = block % call.num_heads;
  const PatchTile whole = call.tiles[block / call.num_heads];
  constexpr int kKeys = Form::kKeys;
  bool is_idle = false;
  const PatchTile tile = PartOf<kBlocks>(whole, kKeys, rank, &is_idle);
  const HeadRows rows(call, head);
  const uint32_t shared = SharedAddress(shared_bytes);
  const PatchTiles<Form> tiles(maps, rows, tile, shared);
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
  PatchGroup<Form> group(shared);
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
  if constexpr (kBlocks > 1) {
    // Where queries and keys were, once both groups are done with them.
    static_assert(Form::kQueriesAt + Form::kKept * kThreads * 4 <= Form::kSharedBytes);
    float* const published =
        reinterpret_cast<float*>(shared_bytes + Form::kQueriesAt) + threadIdx.x;
    __syncthreads();
    if (is_idle) group.Forget();
    if (rank != 0) group.Publish(published);
    SyncCluster();
    if (rank == 0) {
#pragma unroll 1
      for (int other = 1; other < kBlocks; ++other) {
        group.AddPublished(AddressInBlock(SharedAddress(published), other));
      }
    }
    SyncCluster();  // nobody ends while it is read
    if (rank != 0) return;
  }
  group.Store(call, head, row, whole.end);
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
  const int num_blocks = call.num_tiles * call.num_heads;
  const LastBlocks last = SplitLastBlocks(num_blocks, context.Device());
  const auto launch = [&](auto kernel, int cluster, int first, int count) {
    if (count == 0) return;
    LaunchClusters(context, kernel, cluster, dim3(count * cluster), dim3(kThreads),
                   Form::kSharedBytes, call, maps, first);
  };
  launch(PatchAttentionKernel<Form, 1>, 1, 0, num_blocks - last.count);
  if (last.parts == 3) {
    launch(PatchAttentionKernel<Form, 3>, 3, num_blocks - last.count, last.count);
  } else {
    launch(PatchAttentionKernel<Form, 2>, 2, num_blocks - last.count, last.count);
  }
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
