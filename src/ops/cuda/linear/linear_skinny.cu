#include <algorithm>

#include "base/check.h"
#include "ops/cuda/linear/linear_skinny.h"
#include "ops/cuda/linear/linear_skinny_input.cuh"
#include "ops/cuda/linear/linear_skinny_kernel.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kStagedNormBytes = 24 * 1024;

// A row of x in shared memory: 64 bytes past a multiple of 128, so that the eight lanes of a phase
// (two rows, 64 bytes each) touch different banks.
int XStride(int in_dim, int cluster) {
  const int num_units = (in_dim + 63) / 64;
  return (num_units + cluster - 1) / cluster * 64 + 32;
}

SkinnyKernelPointer KernelFor(TileType type, int depth) {
  switch (type) {
    case TileType::kBf16:
      return SkinnyKernelFor<TileType::kBf16>(depth);
    case TileType::kU4F16:
      return SkinnyKernelFor<TileType::kU4F16>(depth);
    case TileType::kU4Bf16:
      return SkinnyKernelFor<TileType::kU4Bf16>(depth);
    case TileType::kS8F16:
      return SkinnyKernelFor<TileType::kS8F16>(depth);
    case TileType::kS8Bf16:
      return SkinnyKernelFor<TileType::kS8Bf16>(depth);
  }
  CHECK(false) << "a format without kernels";
  return nullptr;
}

constexpr int kStaticSharedBytes = 256;  // at most

// Dynamic shared memory of a block: at most, and so that two blocks share an SM.
int MaxSharedBytes(const DeviceInfo& device) { return device.shared_bytes_per_block - 1024; }
int SharedBytesForTwoBlocks(const DeviceInfo& device) {
  return device.shared_bytes_per_sm / 2 - 2 * 1024;
}

bool StageNorms(int in_dim) { return 2 * in_dim * sizeof(float) <= kStagedNormBytes; }

int SharedBytes(const LinearCall& call, const SkinnyPlan& plan, bool has_residual) {
  return MakeSkinnyLayout(call.rows, XStride(call.in_dim(), plan.cluster), call.in_dim(),
                          has_residual, StageNorms(call.in_dim()))
      .total;
}

// Steps in flight where a segment has so many units of 64 columns: in bf16 as measured; else the
// depth that pads the segment least, the deeper of equals.
int DepthFor(TileType type, int units) {
  if (type == TileType::kBf16) return units <= 2 ? 4 : 8;
  int best = 0;
  int best_padding = 0;
  for (const int depth : SkinnyDepthsOf(type).values) {
    if (depth == 0) continue;
    const int padding = (units + depth - 1) / depth * depth - units;
    if (best == 0 || padding <= best_padding) {
      best = depth;
      best_padding = padding;
    }
  }
  return best;
}

}  // namespace

SkinnyPlan PlanSkinny(const LinearCall& call) {
  // Measured at the models' shapes (docs/notes/2026-11-few-rows.md): slices of k up to these
  // lengths stream best, and all of a short slice at once.
  const int num_units = (call.in_dim() + 63) / 64;
  SkinnyPlan plan;
  const int most_alone = IsTiled(call.weight) ? 5376 : 3072;
  plan.cluster = call.in_dim() <= most_alone ? 1 : call.in_dim() <= 10240 ? 2 : 4;
  while (plan.cluster > 1 && num_units < plan.cluster * kSkinnyWarps) plan.cluster /= 2;
  const int num_segments = plan.cluster * kSkinnyWarps;
  const int units = (num_units + num_segments - 1) / num_segments;
  plan.depth = DepthFor(TileTypeOf(call.weight), units);
  if (IsTiled(call.weight)) {
    // It would take as long as a quarter of the weights.
    plan.fused_residual_rows = 0;
  }
  return plan;
}

bool SkinnyFits(const DeviceInfo& device, const LinearCall& call, const SkinnyPlan& plan) {
  return call.rows <= kMaxStreamedRows && SharedBytes(call, plan, false) <= MaxSharedBytes(device);
}

void RunSkinny(const LaunchContext& context, const LinearCall& call, const SkinnyPlan& plan) {
  const DeviceInfo& device = context.Device();
  CHECK(call.rows >= 1 && call.rows <= kMaxStreamedRows) << call.rows << " rows";
  CHECK(plan.cluster == 1 || plan.cluster == 2 || plan.cluster == 4 || plan.cluster == 8);

  SkinnyParams params{};
  params.weight = {.data = call.weight.data,
                   .rows = call.out_dim(),
                   .cols = call.in_dim(),
                   .gated = call.epilogue == Epilogue::kGatedGelu};
  params.x = call.x;
  params.output = MakeLinearOutput(call);
  params.in_dim = call.in_dim();
  params.rows = call.rows;
  params.num_tiles = NumLinearTiles(call);
  params.cluster = plan.cluster;
  params.segments = {.num_units = (call.in_dim() + 63) / 64,
                     .num_segments = kSkinnyWarps * plan.cluster};
  params.x_stride = XStride(call.in_dim(), plan.cluster);
  params.stage_norms = StageNorms(call.in_dim());

  if (call.residual != nullptr) {
    params.has_residual = call.rows <= plan.fused_residual_rows &&
                          SharedBytes(call, plan, true) <= SharedBytesForTwoBlocks(device);
    if (params.has_residual) {
      params.residual = *call.residual;
    } else {
      CHECK(call.x != nullptr) << "the residual update of " << call.rows << " rows needs scratch";
      RunResidualUpdate(context, *call.residual, call.rows, call.in_dim(), call.x);
    }
  }
  const int shared_bytes = SharedBytes(call, plan, params.has_residual);
  CHECK_LE(shared_bytes, MaxSharedBytes(device)) << "in_dim " << call.in_dim() << " is too large";

  const int taken_bytes = shared_bytes + kStaticSharedBytes + device.reserved_shared_bytes;
  const int blocks_per_sm =
      std::clamp(std::min(SkinnyBlocksPerSm(TileTypeOf(call.weight), plan.depth),
                          device.shared_bytes_per_sm / taken_bytes),
                 1, plan.blocks_per_sm);
  // No more clusters than run at once, each with the same number of tiles but for the last.
  const int max_clusters = std::max(1, device.num_sms * blocks_per_sm / plan.cluster);
  const int tiles_per_cluster = (params.num_tiles + max_clusters - 1) / max_clusters;
  const int num_clusters = (params.num_tiles + tiles_per_cluster - 1) / tiles_per_cluster;

  LaunchClusters(context, KernelFor(TileTypeOf(call.weight), plan.depth), plan.cluster,
                 dim3(num_clusters * plan.cluster), dim3(kSkinnyThreads), shared_bytes, params);
}

}  // namespace lapidary::cuda
