#include <algorithm>

#include "ops/cuda/linear/linear_large.h"
#include "ops/cuda/linear/linear_large_tiles.h"

namespace lapidary::cuda {
namespace {

// What an SM multiplies at best.
constexpr double kFlopsPerNs = 6750.0;

int NumKBlocks(const LinearCall& call) { return (call.in_dim() + kLargeKBlock - 1) / kLargeKBlock; }

int NumTiles(const LinearCall& call, const LargePlan& plan) {
  const int parts = (call.rows + plan.columns - 1) / plan.columns;
  return (call.out_dim() + plan.tile_rows - 1) / plan.tile_rows * parts;
}

// About how long a call takes, in us: turns of all SMs, each of which loads and multiplies a
// block's share of the sum, whichever takes longer, and then finishes it. The numbers are fitted to
// measurements of all plans at the models' shapes (docs/notes/2026-11-large-products.md): the plan
// that costs least is 1% slower than the best one in the mean, 11% at most.
double Cost(const DeviceInfo& device, const LinearCall& call, const LargePlan& plan) {
  const int boxes = plan.tile_rows / kLargeBoxRows;
  const int num_blocks = NumTiles(call, plan) * plan.split;
  const int at_once = device.cluster_blocks[plan.split];
  const int turns = (num_blocks + at_once - 1) / at_once;
  const int k_blocks = (NumKBlocks(call) + plan.split - 1) / plan.split;
  const double load_ns = LargeStageBytes(boxes, plan.columns) / 94.0;
  const double multiply_ns = 2.0 * plan.tile_rows * plan.columns * kLargeKBlock / kFlopsPerNs;
  const double finish_ns = 0.052 * plan.tile_rows * plan.columns / plan.split;
  const double exchange_ns =
      plan.split == 1 ? 0.0 : 930.0 + LargeReceivedBytes(boxes, plan.columns, plan.split) / 15.3;
  const double sum_ns = k_blocks * std::max(load_ns, multiply_ns);
  return (1140.0 + turns * (sum_ns + finish_ns + exchange_ns)) * 1e-3;
}

}  // namespace

bool LargeFits(const LinearCall& call) {
  const int width = call.epilogue == Epilogue::kGatedGelu ? call.out_dim() / 2 : call.out_dim();
  if (call.rows < kMinLargeColumns - 15 || call.rows > kMaxLargeRows || width % 8 != 0) {
    return false;
  }
  if (call.epilogue == Epilogue::kSoftcap) return false;
  return call.epilogue != Epilogue::kGeluMul ||
         (call.multiplier_stride % 8 == 0 &&
          reinterpret_cast<uintptr_t>(call.multiplier) % 16 == 0);
}

std::vector<LargePlan> LargePlans(const DeviceInfo& device, const LinearCall& call) {
  std::vector<LargePlan> plans;
  for (const int tile_rows : {128, 256}) {
    const int boxes = tile_rows / kLargeBoxRows;
    int last_columns = 0;
    for (int parts = (call.rows + kMaxLargeColumns - 1) / kMaxLargeColumns;; ++parts) {
      const int columns = ((call.rows + parts - 1) / parts + 15) / 16 * 16;
      if (columns < kMinLargeColumns) break;
      if (columns == last_columns) continue;
      last_columns = columns;
      for (int split = 1; split <= DeviceInfo::kMaxCluster; ++split) {
        const LargePlan plan{tile_rows, columns, split};
        if (split > 1 && (!LargeSplitFits(boxes, columns, split) || 2 * split > NumKBlocks(call) ||
                          NumTiles(call, plan) * split > device.cluster_blocks[split])) {
          continue;
        }
        plans.push_back(plan);
      }
    }
  }
  return plans;
}

CostedLargePlan PlanLarge(const DeviceInfo& device, const LinearCall& call) {
  CostedLargePlan best;
  for (const LargePlan& plan : LargePlans(device, call)) {
    const double cost_us = Cost(device, call, plan);
    if (best.cost_us == 0.0 || cost_us < best.cost_us) best = {plan, cost_us};
  }
  return best;
}

bool LargeIsWorthwhile(const DeviceInfo& device, const LinearCall& call) {
  constexpr int kFewestRows = 129;
  if (!LargeFits(call)) return false;
  // A kernel saved, with the product's way to memory and back.
  if (call.epilogue == Epilogue::kGatedGelu) return true;
  // Where our tiles keep the card busy.
  if (call.rows < kFewestRows) return false;
  constexpr double kBusy = 0.67;
  const double flops_per_ns =
      2.0 * call.rows * call.in_dim() * call.out_dim() / (1e3 * PlanLarge(device, call).cost_us);
  return flops_per_ns >= kBusy * kFlopsPerNs * device.num_sms;
}

}  // namespace lapidary::cuda
