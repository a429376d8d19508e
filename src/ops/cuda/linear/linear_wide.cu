#include <algorithm>

#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/linear_wide.h"
#include "ops/cuda/linear/linear_wide_kernel.cuh"
#include "ops/cuda/linear/tensor_map.h"

namespace lapidary::cuda {
namespace {

WideKernelPointer KernelFor(TileType type, const WidePlan& plan, int columns) {
  switch (type) {
    case TileType::kU4F16:
      return WideKernelFor<TileType::kU4F16>(plan.tile_rows, columns, plan.scales_last);
    case TileType::kU4Bf16:
      return WideKernelFor<TileType::kU4Bf16>(plan.tile_rows, columns, plan.scales_last);
    case TileType::kS8F16:
      return WideKernelFor<TileType::kS8F16>(plan.tile_rows, columns, plan.scales_last);
    case TileType::kS8Bf16:
      return WideKernelFor<TileType::kS8Bf16>(plan.tile_rows, columns, plan.scales_last);
    case TileType::kBf16:
      break;
  }
  return WideKernelFor<TileType::kBf16>(plan.tile_rows, columns, plan.scales_last);
}

constexpr int kAlignmentBytes = 1024;

// Dynamic shared memory of a block: at most, and so that there is room for another one and for a
// small kernel beside.
int MaxSharedBytes(const DeviceInfo& device) { return device.shared_bytes_per_block - 1024; }
int SharedBytesForTwo(const DeviceInfo& device) {
  return device.shared_bytes_per_sm / 2 - 6 * 1024;
}

}  // namespace

void RunWide(const LaunchContext& context, const LinearCall& call, const WidePlan& plan) {
  const DeviceInfo& device = context.Device();
  const int max_shared_bytes = MaxSharedBytes(device);
  CHECK_GE(plan.row_parts, 1);
  CHECK(call.rows >= 1 && call.rows <= kMaxWideRows * plan.row_parts) << call.rows;
  CHECK(plan.tile_rows % 64 == 0 && plan.tile_rows >= 64 && plan.tile_rows <= 256);
  const TileType type = TileTypeOf(call.weight);
  CHECK(plan.split >= 1 && plan.split <= 8) << plan.split;
  CHECK(plan.split == 1 || !plan.persistent);
  if (call.residual != nullptr) {
    CHECK(call.x != nullptr) << "the residual update of " << call.rows << " rows needs scratch";
    RunResidualUpdate(context, *call.residual, call.rows, call.in_dim(), call.x);
  }

  const bool gated = call.epilogue == Epilogue::kGatedGelu;
  const int columns = WideColumns(type, (call.rows + plan.row_parts - 1) / plan.row_parts);
  const int half = plan.tile_rows / 2;
  WideParams params{};
  params.output = MakeLinearOutput(call);
  params.rows = call.rows;
  params.num_tiles = NumWideTiles(call, plan.tile_rows);
  params.second_half = gated ? call.out_dim() / 2 : half;
  params.tile_step = gated ? half : plan.tile_rows;
  params.num_k_blocks = NumWideKBlocks(call.in_dim());
  params.split = plan.split;
  params.row_parts = (call.rows + columns - 1) / columns;
  params.vectorised =
      params.output.width % 8 == 0 &&
      (call.epilogue != Epilogue::kGeluMul ||
       (call.multiplier_stride % 8 == 0 && reinterpret_cast<uintptr_t>(call.multiplier) % 16 == 0));
  CHECK_LE(plan.split, params.num_k_blocks);

  const int stage_bytes = WideStageBytes(type, plan.tile_rows, columns);
  const int staging_bytes = WideStagingBytes(plan.tile_rows, columns);
  const bool alone =
      plan.alone || plan.persistent || WideBlocksPerSm(type, plan.tile_rows, columns) == 1;
  const int room = (alone ? max_shared_bytes : SharedBytesForTwo(device)) - kAlignmentBytes -
                   (plan.persistent ? staging_bytes : 0);
  params.stages = std::min(kMaxStages, room / stage_bytes);
  if (!plan.persistent) {
    const int most_blocks = (params.num_k_blocks + plan.split - 1) / plan.split;
    params.stages =
        std::min(params.stages, (most_blocks + WideStageBlocks(type) - 1) / WideStageBlocks(type));
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
      IsTiled(type) ? MakeStripeMap(call.weight.data, call.out_dim() / kTileRows,
                                    params.num_k_blocks * TileUnitBytes(type), half / kTileRows,
                                    WideStripeBytes(type))
                    : MakeSwizzledMap(Bf16Values(call.weight), call.out_dim(), call.in_dim(), half);
  const CUtensorMap x_map =
      IsTiled(type)
          ? MakeChunkedMap(call.x, call.rows, call.in_dim(), columns, WideStageBlocks(type))
          : MakeSwizzledMap(call.x, call.rows, call.in_dim(), columns);
  LaunchClusters(context, KernelFor(type, plan, columns), plan.split,
                 dim3(num_clusters * plan.split * params.row_parts),
                 dim3(WideThreads(plan.tile_rows)), shared_bytes, weight_map, x_map, params);
}

}  // namespace lapidary::cuda
