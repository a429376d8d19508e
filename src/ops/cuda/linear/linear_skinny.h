// Linear layers of up to 8 rows: weights, in bf16 or quantised, stream from memory into registers
// and are the A operand of tensor-core products, so that 8 rows cost what one does.
//
// The dimension that is summed over is cut into units of 64 values, and these into
// kSkinnyWarps * cluster segments, one per warp of a cluster of blocks. A segment is summed by one
// chain of mma instructions in rising order; a block adds its segments in rising order, then the
// sums of the cluster's blocks are added in rising order. The cut depends on the weight's shape
// alone, so a row's result does not depend on the rows beside it.
#pragma once

#include "ops/cuda/linear/linear.h"
#include "ops/cuda/tile_type.h"

namespace lapidary::cuda {

constexpr int kSkinnyWarps = 8;
constexpr int kSkinnyThreads = kSkinnyWarps * 32;

// Steps of weights that a warp may have in flight: a step is 32 columns of 16 rows in bf16, 64 in
// the tiled formats. Zeros at the end are no depths.
struct SkinnyDepths {
  int values[5];
};
constexpr SkinnyDepths SkinnyDepthsOf(TileType type) {
  if (type == TileType::kBf16) return {4, 6, 8};
  if (Is4Bit(type)) return {3, 4, 5, 6, 8};
  return {3, 5, 6};
}
// Blocks on an SM that registers allow.
constexpr int SkinnyBlocksPerSm(TileType type, int depth) {
  if (type == TileType::kBf16) return depth <= 6 ? 3 : 2;
  if (Is4Bit(type)) return depth <= 3 ? 4 : depth <= 6 ? 3 : 2;
  return depth <= 3 ? 3 : 2;
}

// How a weight is streamed. `cluster` is part of the result's rounding, the rest is not.
struct SkinnyPlan {
  int cluster = 1;        // blocks that share a tile of outputs and split the sum: 1, 2, 4 or 8
  int depth = 4;          // one of SkinnyDepthsOf the weight's type
  int blocks_per_sm = 4;  // at most
  int fused_residual_rows = 1;  // up to so many rows, each block computes the residual update
};

// The plan for a weight, whatever the number of rows.
SkinnyPlan PlanSkinny(const LinearCall& call);

// Whether a call has no more than kMaxStreamedRows rows and shared memory has room for them;
// PlanSkinny sees to the latter for every model's shapes.
bool SkinnyFits(const DeviceInfo& device, const LinearCall& call, const SkinnyPlan& plan);

// For calls that fit. With more rows than plan.fused_residual_rows, the residual update is a launch
// of its own.
void RunSkinny(const LaunchContext& context, const LinearCall& call, const SkinnyPlan& plan);

}  // namespace lapidary::cuda
