// Linear layers of some hundred rows (97 to 1,024), as steps bring them that verify drafts of many
// sequences: too many for weights to be all that counts, too few for a library's tiles to fit.
//
// The weight's rows are the instruction's 64 rows, the rows of x its columns. A block computes a
// tile of 128 or 256 weight rows by up to 208 rows of x, whose sums fill the registers of two
// warpgroups; two other threads keep copies in flight. Which tile is best is a matter of how full
// the last turn of all SMs is. Blocks may split the sum over k; they are then a cluster, and each
// finishes a share of the columns.
#pragma once

#include <vector>

#include "ops/cuda/linear/linear.h"

namespace lapidary::cuda {

inline constexpr int kMaxLargeRows = 1024;

struct LargePlan {
  int tile_rows = 256;  // of the weight: 128 or 256
  int columns = 208;    // rows of x of a tile: a multiple of 16 from 112 to 208
  int split = 1;        // blocks that split the sum

  bool operator==(const LargePlan&) const = default;
};

// Whether a call can run this way at all: the number of rows, bf16 results, and weights and results
// whose rows come in groups of eight.
bool LargeFits(const LinearCall& call);

// The plan with the lowest cost by a model of the card, and that cost in us.
struct CostedLargePlan {
  LargePlan plan;
  double cost_us = 0.0;
};
CostedLargePlan PlanLarge(const DeviceInfo& device, const LinearCall& call);

// All that a call could run with, for benchmarks and tests.
std::vector<LargePlan> LargePlans(const DeviceInfo& device, const LinearCall& call);

// Whether RunLarge is the fastest way to run a call, as measured.
bool LargeIsWorthwhile(const DeviceInfo& device, const LinearCall& call);

// The residual update is a launch of its own.
void RunLarge(const LaunchContext& context, const LinearCall& call, const LargePlan& plan);

// Has the driver load all that RunLarge launches. Were a kernel loaded when it is first launched,
// that would wait for all that is under way.
void LoadLarge(const DeviceInfo& device);

}  // namespace lapidary::cuda
