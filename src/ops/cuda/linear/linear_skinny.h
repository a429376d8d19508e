// Linear layers of up to 8 rows: weights stream from memory into registers and meet x in tensor
// cores.
//
// The dimension that is summed over is cut into units of 64 values, and these into
// kSkinnyWarps * cluster segments, one per warp of a cluster of blocks. A segment is summed by one
// chain of mma instructions in rising order; a block adds its segments in rising order, then the
// sums of the cluster's blocks are added in rising order. The cut depends on the weight's shape
// alone, so a row's result does not depend on the rows beside it.
#pragma once

#include "ops/cuda/linear/linear.h"

namespace lapidary::cuda {

constexpr int kSkinnyWarps = 8;
constexpr int kSkinnyThreads = kSkinnyWarps * 32;

// How a weight is streamed. `cluster` is part of the result's rounding, the rest is not.
struct SkinnyPlan {
  int cluster = 1;  // blocks that share a tile of outputs and split the sum: 1, 2, 4 or 8
  int depth = 4;    // loads of 64 bytes and row in flight per warp: 4, 6 or 8
  int blocks_per_sm = 3;
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
