#include <algorithm>

#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/linear_large.h"
#include "ops/cuda/linear/linear_large_kernel.cuh"
#include "ops/cuda/linear/tensor_map.h"

namespace lapidary::cuda {
namespace {

LargeKernelPointer KernelFor(const LargePlan& plan, bool gated) {
  return plan.tile_rows == kLargeBoxRows ? LargeKernelOf128(plan.columns, gated)
                                         : LargeKernelOf256(plan.columns, gated);
}

}  // namespace

void LoadLarge(const DeviceInfo& device) {
  for (const int boxes : {1, 2}) {
    for (int columns = kMinLargeColumns; columns <= kMaxLargeColumns; columns += 16) {
      for (const bool gated : {false, true}) {
        const LargeKernelPointer kernel =
            KernelFor({.tile_rows = boxes * kLargeBoxRows, .columns = columns}, gated);
        PrepareKernel(device, reinterpret_cast<const void*>(kernel), 1,
                      LargeSharedBytes(boxes, columns));
      }
    }
  }
}

void RunLarge(const LaunchContext& context, const LinearCall& call, const LargePlan& plan) {
  CHECK(LargeFits(call)) << call.rows << " rows, " << call.out_dim() << " outputs";
  CHECK(plan.tile_rows == kLargeBoxRows || plan.tile_rows == 2 * kLargeBoxRows) << plan.tile_rows;
  const int boxes = plan.tile_rows / kLargeBoxRows;
  if (call.residual != nullptr) {
    CHECK(call.x != nullptr) << "the residual update of " << call.rows << " rows needs scratch";
    RunResidualUpdate(context, *call.residual, call.rows, call.in_dim(), call.x);
  }
  const bool gated = call.epilogue == Epilogue::kGatedGelu;
  LargeParams params{};
  params.output = MakeLinearOutput(call);
  params.rows = call.rows;
  params.num_parts = (call.rows + plan.columns - 1) / plan.columns;
  params.num_tiles = (call.out_dim() + plan.tile_rows - 1) / plan.tile_rows * params.num_parts;
  params.num_k_blocks = (call.in_dim() + kLargeKBlock - 1) / kLargeKBlock;
  params.split = plan.split;
  CHECK(plan.split >= 1 && plan.split <= params.num_k_blocks) << plan.split;
  CHECK(plan.split == 1 || LargeSplitFits(boxes, plan.columns, plan.split)) << plan.split;
  const int num_blocks = plan.split == 1 ? std::min(params.num_tiles, context.Device().num_sms)
                                         : params.num_tiles * plan.split;

  const CUtensorMap weight_map =
      MakeExpertMap(Bf16Values(call.weight), 1, gated ? 2 : 1, params.output.width, call.in_dim());
  const CUtensorMap x_map = MakeSwizzledMap(call.x, call.rows, call.in_dim(), plan.columns);
  LaunchClusters(context, KernelFor(plan, gated), plan.split, dim3(num_blocks), dim3(kLargeThreads),
                 LargeSharedBytes(boxes, plan.columns), weight_map, x_map, params);
}

}  // namespace lapidary::cuda
