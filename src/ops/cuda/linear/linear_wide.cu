#include <algorithm>

#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/linear_store.cuh"
#include "ops/cuda/linear/linear_wide.h"
#include "ops/cuda/linear/tensor_map.h"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kMaxStages = 12;
constexpr int kFewRows = 96;  // up to here the bytes count, not yet the arithmetic
// Floats behind a row of staged sums: a warp's stores spread over all banks.
constexpr int kPadding = 4;

// A warpgroup multiplies 64 weight rows; two of them share a tile of 64, half of x's rows each.
__host__ __device__ constexpr int ConsumerWarps(int tile_rows) {
  return tile_rows == 64 ? 8 : tile_rows / 16;
}
// The consumers and one warp that copies.
__host__ __device__ constexpr int NumThreads(int tile_rows) {
  return 32 * (ConsumerWarps(tile_rows) + 1);
}
// What registers allow.
constexpr int BlocksPerSm(int tile_rows) { return tile_rows <= 128 ? 2 : 1; }

struct WideParams {
  LinearOutput output;
  int rows;
  int num_tiles;
  int second_half;   // the weight row behind row tile_rows / 2 of tile 0
  int tile_step;     // weight rows from one tile to the next, of either half
  int num_k_blocks;  // of 64 values
  int split;
  int row_parts;
  int stages;
  int staging;      // byte offset of the staged sums behind the ring's start
  bool vectorised;  // rows of y and of the multiplier are aligned for groups of eight
};

__host__ __device__ constexpr int StageBytes(int tile_rows, int columns) {
  return (tile_rows + columns) * kSwizzledRowBytes;
}
__host__ __device__ constexpr int StagingBytes(int tile_rows, int columns) {
  return columns * (tile_rows + kPadding) * static_cast<int>(sizeof(float));
}

template <int kTileRows>
__device__ __forceinline__ void SyncConsumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(32 * ConsumerWarps(kTileRows)) : "memory");
}

// Eight features of a row, `sums` already gated; y's rows are aligned for it.
__device__ __forceinline__ void StoreEight(const LinearOutput& output, int row, int feature,
                                           float (&sums)[8]) {
  if (feature >= output.width) return;
  const int64_t index = static_cast<int64_t>(row) * output.width + feature;
  if (output.epilogue == Epilogue::kSoftcap) {
    float4* y = reinterpret_cast<float4*>(static_cast<float*>(output.y) + index);
#pragma unroll
    for (float& sum : sums) sum = Softcap(sum, output.softcap);
    y[0] = {sums[0], sums[1], sums[2], sums[3]};
    y[1] = {sums[4], sums[5], sums[6], sums[7]};
    return;
  }
  if (output.epilogue == Epilogue::kGeluMul) {
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(
        output.multiplier + row * output.multiplier_stride + feature));
    const float4 low = UnpackBf16x4({words.x, words.y});
    const float4 high = UnpackBf16x4({words.z, words.w});
    const float factors[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = GeluTanh(sums[i]) * factors[i];
  }
  *reinterpret_cast<uint4*>(static_cast<bf16*>(output.y) + index) = {
      PackBf16x2(sums[0], sums[1]), PackBf16x2(sums[2], sums[3]), PackBf16x2(sums[4], sums[5]),
      PackBf16x2(sums[6], sums[7])};
}

// Adds eight sums of `split` blocks that lie `stride` floats apart, in rising order of k.
__device__ __forceinline__ void SumEight(const float* staged, int split, int stride,
                                         float (&sums)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = 0.0f;
  for (int rank = 0; rank < split; ++rank) {
    const float4* part = reinterpret_cast<const float4*>(staged + rank * stride);
    const float4 low = part[0];
    const float4 high = part[1];
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] += values[i];
  }
}

// num_rows rows of a tile, from `first_row` on, from their staged sums. The sums of the blocks of a
// split lie part_stride floats apart.
template <int kTileRows, bool kGated>
__device__ __forceinline__ void FinishRows(const WideParams& p, const float* staged,
                                           int part_stride, int first_row, int num_rows, int tile) {
  constexpr int kConsumers = 32 * ConsumerWarps(kTileRows);
  constexpr int kStride = kTileRows + kPadding;
  constexpr int kHalf = kTileRows / 2;
  constexpr int kWidth = kGated ? kHalf : kTileRows;
  if (!p.vectorised) {
#pragma unroll 1
    for (int item = threadIdx.x; item < num_rows * kWidth; item += kConsumers) {
      const float* source = staged + item / kWidth * kStride + item % kWidth;
      float sum = 0.0f, up = 0.0f;
      for (int rank = 0; rank < p.split; ++rank, source += part_stride) {
        sum += source[0];
        if (kGated) up += source[kHalf];
      }
      if (kGated) sum = GeluTanh(sum) * up;
      StoreFeature(p.output, first_row + item / kWidth, tile * kWidth + item % kWidth, sum);
    }
    return;
  }
  constexpr int kGroups = kWidth / 8;
#pragma unroll 2
  for (int item = threadIdx.x; item < num_rows * kGroups; item += kConsumers) {
    const int row = item / kGroups;
    const int feature = item % kGroups * 8;
    float sums[8];
    SumEight(staged + row * kStride + feature, p.split, part_stride, sums);
    if constexpr (kGated) {
      float up[8];
      SumEight(staged + row * kStride + kHalf + feature, p.split, part_stride, up);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] = GeluTanh(sums[i]) * up[i];
    }
    StoreEight(p.output, first_row + row, tile * kWidth + feature, sums);
  }
}

// Shared memory: a ring of stages (weight [kTileRows][64], x [kColumns][64]), and the sums as
// f32 [kColumns][kTileRows + kPadding], in the ring's place where a block has but one tile. With a
// split, what its blocks send follows: f32 [split][rows that this block finishes][the same].
template <int kTileRows, int kColumns>
__global__ void __launch_bounds__(NumThreads(kTileRows), BlocksPerSm(kTileRows))
    WideKernel(const __grid_constant__ CUtensorMap weight_map,
               const __grid_constant__ CUtensorMap x_map, const __grid_constant__ WideParams p) {
  constexpr int kConsumerWarps = ConsumerWarps(kTileRows);
  constexpr int kGroupColumns = kTileRows == 64 ? kColumns / 2 : kColumns;  // of a warpgroup
  constexpr int kHalf = kTileRows / 2;
  constexpr int kWeightBytes = kTileRows * kSwizzledRowBytes;
  constexpr int kStageBytes = StageBytes(kTileRows, kColumns);
  constexpr int kStride = kTileRows + kPadding;
  constexpr int kRowBytes = kStride * static_cast<int>(sizeof(float));
  extern __shared__ unsigned char dynamic_shared[];
  __shared__ uint64_t barriers[2 * kMaxStages + 1];
  AllowNextKernel();

  const int warp = threadIdx.x / 32;
  const bool is_producer = threadIdx.x == 32 * kConsumerWarps;
  const uint32_t ring = (SharedAddress(dynamic_shared) + 1023) & ~1023u;
  const uint32_t full = SharedAddress(barriers);
  const uint32_t empty = full + 8 * kMaxStages;
  const uint32_t exchanged = full + 16 * kMaxStages;

  // Clusters that share a tile's weights lie beside each other, and find them in L2.
  const int rank = blockIdx.x % p.split;
  const int cluster = blockIdx.x / p.split;
  const int first_tile = cluster / p.row_parts;
  const int tiles_at_once = gridDim.x / (p.split * p.row_parts);
  const int first_row = cluster % p.row_parts * kColumns;
  const int num_rows = min(kColumns, p.rows - first_row);
  const int k_begin = rank * p.num_k_blocks / p.split;
  const int k_end = (rank + 1) * p.num_k_blocks / p.split;
  // The blocks of a split finish so many rows each, the last ones fewer.
  const int rows_of_block = (num_rows + p.split - 1) / p.split;
  const auto num_own_rows = [&](int of) {
    return max(0, min(rows_of_block, num_rows - of * rows_of_block));
  };

  // The producer's position in its stream of copies, over all tiles of this block.
  struct Position {
    int tile, k;
    RingPosition ring;
  };
  const auto advance = [&](Position& at) {
    at.ring.Advance(p.stages);
    if (++at.k == k_end) {
      at.k = k_begin;
      at.tile += tiles_at_once;
    }
  };
  const BoxUse weight_use = p.row_parts > 1 ? BoxUse::kNormal : BoxUse::kOnce;
  const auto copy_weight = [&](const Position& at) {
    const uint32_t barrier = full + 8 * at.ring.slot;
    const uint32_t target = ring + at.ring.slot * kStageBytes;
    const int row = at.tile * p.tile_step;
    ExpectBytes(barrier, kStageBytes);
    CopyBox(weight_map, row, at.k * kSwizzledRowValues, target, barrier, weight_use);
    CopyBox(weight_map, row + p.second_half, at.k * kSwizzledRowValues,
            target + kHalf * kSwizzledRowBytes, barrier, weight_use);
  };
  const auto copy_x = [&](const Position& at) {
    CopyBox(x_map, first_row, at.k * kSwizzledRowValues,
            ring + at.ring.slot * kStageBytes + kWeightBytes, full + 8 * at.ring.slot,
            BoxUse::kAgain);
  };

  int ahead = 0;
  if (is_producer) {
    PrefetchMap(weight_map);
    PrefetchMap(x_map);
    for (int stage = 0; stage < p.stages; ++stage) {
      InitBarrier(full + 8 * stage, 1);
      InitBarrier(empty + 8 * stage, kConsumerWarps);
    }
    InitBarrier(exchanged, 1);
    PublishBarriers();
    Position at{first_tile, k_begin, {}};
    for (; ahead < p.stages && at.tile < p.num_tiles; ++ahead) {
      copy_weight(at);
      advance(at);
    }
    ExpectBytes(exchanged, p.split * num_own_rows(rank) * kRowBytes);
  }
  __syncthreads();
  WaitForPreviousKernel();

  if (warp == kConsumerWarps) {
    if (is_producer) {
      Position at{first_tile, k_begin, {}};
      for (; ahead > 0; --ahead) {
        copy_x(at);
        advance(at);
      }
      while (at.tile < p.num_tiles) {
        AwaitBarrier(empty + 8 * at.ring.slot, at.ring.parity ^ 1);
        copy_weight(at);
        copy_x(at);
        advance(at);
      }
    }
    __syncwarp();
    if (p.split > 1) {
      TellCluster();
      AwaitCluster();
      TellCluster();
    }
  } else {
    const int lane = threadIdx.x % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    const int first_weight_row = kTileRows == 64 ? 0 : 64 * (warp / 4);
    const int first_column = kTileRows == 64 ? kGroupColumns * (warp / 4) : 0;
    const uint32_t staging = ring + p.staging;
    float* const staged =
        reinterpret_cast<float*>(dynamic_shared + (staging - SharedAddress(dynamic_shared)));
    RingPosition at;
    for (int tile = first_tile; tile < p.num_tiles; tile += tiles_at_once) {
      float acc[kGroupColumns / 2];
#pragma unroll
      for (float& value : acc) value = 0.0f;
      int last_slot = -1;
      for (int k = k_begin; k < k_end; ++k) {
        AwaitBarrier(full + 8 * at.slot, at.parity);
        const uint32_t stage = ring + at.slot * kStageBytes;
        const uint64_t a = SwizzledOperand(stage + first_weight_row * kSwizzledRowBytes);
        const uint64_t b = SwizzledOperand(stage + kWeightBytes + first_column * kSwizzledRowBytes);
        WgmmaBegin();
#pragma unroll
        for (int step = 0; step < kSwizzledRowValues / 16; ++step) {
          Wgmma<kGroupColumns>::Run(acc, a + 2 * step, b + 2 * step);
        }
        WgmmaCommit();
        // All but the newest are done, so the slot before is free.
        WgmmaWait<1>();
        if (lane == 0 && last_slot >= 0) ArriveAtBarrier(empty + 8 * last_slot);
        last_slot = at.slot;
        at.Advance(p.stages);
      }
      WgmmaWait<0>();
      if (lane == 0) ArriveAtBarrier(empty + 8 * last_slot);

      if (p.split > 1) TellCluster();  // that this ring is out of use
      // The staged sums' place is free: of the ring or of the tile before.
      SyncConsumers<kTileRows>();
      float* const lane_sums =
          staged + (first_column + 2 * t) * kStride + first_weight_row + 16 * (warp % 4) + g;
#pragma unroll
      for (int j = 0; j < kGroupColumns / 8; ++j) {
        float* const target = lane_sums + 8 * j * kStride;
        target[0] = acc[4 * j];
        target[kStride] = acc[4 * j + 1];
        target[8] = acc[4 * j + 2];
        target[kStride + 8] = acc[4 * j + 3];
      }
      const float* sums = staged;
      if (p.split > 1) {
        PublishToCopies();
        AwaitCluster();
        SyncConsumers<kTileRows>();
        constexpr int kStagingBytes = StagingBytes(kTileRows, kColumns);
        const int target = threadIdx.x;
        if (target < p.split && num_own_rows(target) > 0) {
          const uint32_t num_bytes = num_own_rows(target) * kRowBytes;
          const uint32_t received = staging + kStagingBytes + rank * rows_of_block * kRowBytes;
          CopyToBlock(AddressInBlock(received, target),
                      staging + target * rows_of_block * kRowBytes, num_bytes,
                      AddressInBlock(exchanged, target));
        }
        sums = staged + kStagingBytes / sizeof(float);
        AwaitBarrier(exchanged, 0);
        TellCluster();  // that what was sent to this block has arrived
      } else {
        SyncConsumers<kTileRows>();
      }
      const int part_stride = rows_of_block * kStride;
      const int own_row = first_row + rank * rows_of_block;
      if (p.output.epilogue == Epilogue::kGatedGelu) {
        FinishRows<kTileRows, true>(p, sums, part_stride, own_row, num_own_rows(rank), tile);
      } else {
        FinishRows<kTileRows, false>(p, sums, part_stride, own_row, num_own_rows(rank), tile);
      }
    }
  }
  // Until all copies out of this block have arrived.
  if (p.split > 1) AwaitCluster();
}

using WideKernelPointer = void (*)(CUtensorMap, CUtensorMap, WideParams);

template <int kTileRows>
WideKernelPointer KernelForColumns(int columns) {
  switch (columns) {
    case 16:
      return WideKernel<kTileRows, 16>;
    case 32:
      return WideKernel<kTileRows, 32>;
    case 48:
      return WideKernel<kTileRows, 48>;
    case 64:
      return WideKernel<kTileRows, 64>;
    case 80:
      return WideKernel<kTileRows, 80>;
    case 96:
      return WideKernel<kTileRows, 96>;
    case 112:
      return WideKernel<kTileRows, 112>;
    default:
      CHECK_EQ(columns, 128);
      return WideKernel<kTileRows, 128>;
  }
}

WideKernelPointer KernelFor(int tile_rows, int columns) {
  return tile_rows == 64    ? KernelForColumns<64>(columns)
         : tile_rows == 128 ? KernelForColumns<128>(columns)
                            : KernelForColumns<192>(columns);
}

constexpr int kAlignmentBytes = 1024;

// Dynamic shared memory of a block: at most, and so that there is room for another one and for a
// small kernel beside.
int MaxSharedBytes(const DeviceInfo& device) { return device.shared_bytes_per_block - 1024; }
int SharedBytesForTwo(const DeviceInfo& device) {
  return device.shared_bytes_per_sm / 2 - 6 * 1024;
}

int Columns(int rows) { return (rows + 15) / 16 * 16; }
int NumKBlocks(int in_dim) { return (in_dim + kSwizzledRowValues - 1) / kSwizzledRowValues; }
int NumTiles(const LinearCall& call, int tile_rows) {
  return (call.out_dim() + tile_rows - 1) / tile_rows;
}

// Few rows and a weight that all multiprocessors' shared memory can hold at once: what counts is
// how early it gets there. Small blocks, two of which find room beside each other, start early.
WidePlan PlanSmall(const DeviceInfo& device, const LinearCall& call) {
  const int enough_blocks = device.num_sms * 10 / 11;
  WidePlan plan{.tile_rows = 64};
  while (plan.split < 8 && 4 * plan.split <= NumKBlocks(call.in_dim()) &&
         NumTiles(call, 64) * plan.split < enough_blocks) {
    plan.split *= 2;
  }
  return plan;
}

// The best plan with so many parts of the sum. Its cost is about how long a block takes, in ns,
// fitted to measurements at the models' shapes (docs/notes/2026-11-wide-products.md): its copies at
// 80 bytes per ns, 0.4 for every sum it finishes, and 3,000 where it must meet others for that. All
// blocks are to be at work at once, each with a multiprocessor of its own; of larger clusters fewer
// fit. None: too many tiles for that.
struct CostedPlan {
  WidePlan plan;
  double cost = 0.0;  // 0: none
};
CostedPlan PlanSplit(const DeviceInfo& device, const LinearCall& call, int split) {
  const int columns = Columns(std::min(call.rows, kMaxWideRows));
  const int copies = (NumKBlocks(call.in_dim()) + split - 1) / split;
  CostedPlan best;
  for (const int tile_rows : {64, 128, 192}) {
    if (NumTiles(call, tile_rows) * split > device.cluster_blocks[split]) continue;
    const double cost = copies * StageBytes(tile_rows, columns) / 80.0 + 0.4 * tile_rows * columns +
                        (split > 1 ? 3000.0 : 0.0);
    if (best.cost != 0.0 && cost >= best.cost) continue;
    best = {{.tile_rows = tile_rows, .split = split, .alone = true}, cost};
  }
  return best;
}

// For weights of so many tiles that blocks are busy without splitting anything.
WidePlan PlanMany(const LinearCall& call) {
  return {.tile_rows = 128, .persistent = call.rows <= kFewRows};
}

CostedPlan PlanBestSplit(const DeviceInfo& device, const LinearCall& call) {
  CostedPlan best;
  const int max_split = std::min(DeviceInfo::kMaxCluster, NumKBlocks(call.in_dim()));
  for (int split = 1; split <= max_split; ++split) {
    const CostedPlan plan = PlanSplit(device, call, split);
    if (plan.cost == 0.0) continue;
    if (best.cost == 0.0 || plan.cost < best.cost) best = plan;
  }
  return best;
}

}  // namespace

WidePlan PlanWide(const DeviceInfo& device, const LinearCall& call) {
  constexpr int64_t kSmallWeight = int64_t{16} << 20;
  if (call.rows <= 32 && int64_t{2} * call.in_dim() * call.out_dim() <= kSmallWeight) {
    return PlanSmall(device, call);
  }
  const CostedPlan best = PlanBestSplit(device, call);
  return best.cost == 0.0 ? PlanMany(call) : best.plan;
}

WidePlan PlanInvariant(const DeviceInfo& device, const LinearCall& call) {
  constexpr int kMiddlingRows = 64;
  LinearCall middling = call;
  middling.rows = kMiddlingRows;
  const CostedPlan chosen = PlanBestSplit(device, middling);
  const int split = chosen.cost == 0.0 ? 1 : chosen.plan.split;
  if (call.rows > kMaxWideRows) {
    return {.tile_rows = 128,
            .split = split,
            .row_parts = (call.rows + kMaxWideRows - 1) / kMaxWideRows};
  }
  return chosen.cost == 0.0 ? PlanMany(call) : PlanSplit(device, call, split).plan;
}

bool WideIsWorthwhile(const DeviceInfo& device, const LinearCall& call) {
  if (call.rows <= kFewRows) return true;
  if (call.rows > kMaxWideRows) return false;
  // Here cuBLASLt's product is as fast or faster, and only saving the epilogue's kernel pays.
  if (call.epilogue == Epilogue::kStore) return false;
  return call.epilogue != Epilogue::kGatedGelu || NumTiles(call, 128) <= 2 * device.num_sms;
}

void RunWide(const LaunchContext& context, const LinearCall& call, const WidePlan& plan) {
  const DeviceInfo& device = context.Device();
  const int max_shared_bytes = MaxSharedBytes(device);
  CHECK_GE(plan.row_parts, 1);
  CHECK(call.rows >= 1 && call.rows <= kMaxWideRows * plan.row_parts) << call.rows;
  CHECK(plan.tile_rows % 64 == 0 && plan.tile_rows >= 64 && plan.tile_rows <= 192);
  CHECK(plan.split >= 1 && plan.split <= 8) << plan.split;
  CHECK(plan.split == 1 || !plan.persistent);
  if (call.residual != nullptr) {
    CHECK(call.x != nullptr) << "the residual update of " << call.rows << " rows needs scratch";
    RunResidualUpdate(context, *call.residual, call.rows, call.in_dim(), call.x);
  }

  const bool gated = call.epilogue == Epilogue::kGatedGelu;
  const int columns = Columns((call.rows + plan.row_parts - 1) / plan.row_parts);
  const int half = plan.tile_rows / 2;
  WideParams params{};
  params.output = MakeLinearOutput(call);
  params.rows = call.rows;
  params.num_tiles = NumTiles(call, plan.tile_rows);
  params.second_half = gated ? call.out_dim() / 2 : half;
  params.tile_step = gated ? half : plan.tile_rows;
  params.num_k_blocks = NumKBlocks(call.in_dim());
  params.split = plan.split;
  params.row_parts = (call.rows + columns - 1) / columns;
  params.vectorised =
      params.output.width % 8 == 0 &&
      (call.epilogue != Epilogue::kGeluMul ||
       (call.multiplier_stride % 8 == 0 && reinterpret_cast<uintptr_t>(call.multiplier) % 16 == 0));
  CHECK_LE(plan.split, params.num_k_blocks);

  const int stage_bytes = StageBytes(plan.tile_rows, columns);
  const int staging_bytes = StagingBytes(plan.tile_rows, columns);
  const bool alone = plan.alone || plan.persistent || BlocksPerSm(plan.tile_rows) == 1;
  const int room = (alone ? max_shared_bytes : SharedBytesForTwo(device)) - kAlignmentBytes -
                   (plan.persistent ? staging_bytes : 0);
  params.stages = std::min(kMaxStages, room / stage_bytes);
  if (!plan.persistent) {
    params.stages = std::min(params.stages, (params.num_k_blocks + plan.split - 1) / plan.split);
  }
  params.staging = plan.persistent ? params.stages * stage_bytes : 0;
  // What blocks of a split send: their rows, rounded up for each.
  const int received_bytes =
      plan.split > 1 ? staging_bytes / columns * (columns + plan.split - 1) : 0;
  int shared_bytes =
      std::max(params.stages * stage_bytes, params.staging + staging_bytes + received_bytes) +
      kAlignmentBytes;
  // A ring that leaves no room for a second block keeps blocks apart.
  if (alone) shared_bytes = std::max(shared_bytes, max_shared_bytes / 2 + 1024);
  CHECK_LE(shared_bytes, max_shared_bytes);
  const int num_clusters =
      plan.persistent ? std::min(params.num_tiles, device.num_sms) : params.num_tiles;

  const CUtensorMap weight_map =
      MakeSwizzledMap(Bf16Values(call.weight), call.out_dim(), call.in_dim(), half);
  const CUtensorMap x_map = MakeSwizzledMap(call.x, call.rows, call.in_dim(), columns);
  LaunchClusters(context, KernelFor(plan.tile_rows, columns), plan.split,
                 dim3(num_clusters * plan.split * params.row_parts),
                 dim3(NumThreads(plan.tile_rows)), shared_bytes, weight_map, x_map, params);
}

}  // namespace lapidary::cuda
