// Linear layers of 9 to 128 rows, and of any number where a row's result must not depend on how
// many there are: weights, in bf16 or quantised, stream through shared memory into wgmma.
//
// The weight's rows are the instruction's 64 rows, the rows of x its columns, padded to a multiple
// of 16, so that a step of few rows wastes little. A block computes a tile of 64 to 192 weight rows
// (with kGatedGelu half of them gate and half up); one warp keeps a ring of copies in flight, the
// others multiply and finish. Weights are on their way before the previous kernel has ended.
//
// Blocks may split the sum over k of a tile; its parts are then added in rising order of k through
// the shared memory of their cluster.
//
// Quantised weights are multiplied as they are and scaled in f32, or, for more rows and where a
// row's result must not depend on how many there are, rounded to bf16 on their way: the result then
// has the bits of the same product with weights that were dequantised before.
#pragma once

#include "ops/cuda/linear/linear.h"

namespace lapidary::cuda {

constexpr int kMaxWideRows = 128;       // of one part
constexpr int kMaxScaledLastRows = 16;  // likewise
// Tiles of so many quantised weight rows, for 17 to 64 rows of x: the fewer bits a weight has, the
// more of what comes from L2 is x, and a taller tile reads it less often.
constexpr int kTallWideRows = 256;
constexpr int kFewestTallRows = 17;
constexpr int kMostTallRows = 64;
constexpr int kFewestGemmRows = 97;  // fewer always go through this kernel, or the streaming one

// `split` and `scales_last` are part of the result's rounding, the rest is not.
struct WidePlan {
  int tile_rows = 128;      // of the weight: 64, 128 or 192; 128 or 256 where it is quantised
  int split = 1;            // blocks that split the sum: 1 to 8
  bool alone = false;       // one block on a multiprocessor, with all its shared memory
  bool persistent = false;  // with split 1: such blocks, which take tile after tile
  // Of quantised weights, for up to kMaxScaledLastRows rows: scales enter in f32, after the
  // products of the columns that share them. Else weights are rounded to bf16.
  bool scales_last = false;
  int row_parts = 1;  // blocks that share a tile's weights and take some rows of x each
};

// The plan for a weight and a number of rows on a device.
WidePlan PlanWide(const DeviceInfo& device, const LinearCall& call);

// The same with a split that depends on the weight's shape and the device alone, for any number of
// rows and format.
WidePlan PlanInvariant(const DeviceInfo& device, const LinearCall& call);

// Whether RunWide is the fastest way to run a call, as measured
// (docs/notes/2026-11-wide-products.md).
bool WideIsWorthwhile(const DeviceInfo& device, const LinearCall& call);

// Up to so many rows quantised weights go through this kernel; for more they are dequantised first.
constexpr int kMaxTiledRows = 128;

// Up to kMaxWideRows rows in each of the plan's parts. The residual update is a launch of its own.
void RunWide(const LaunchContext& context, const LinearCall& call, const WidePlan& plan);

}  // namespace lapidary::cuda
