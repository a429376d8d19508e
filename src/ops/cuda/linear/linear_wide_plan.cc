#include <algorithm>

#include "ops/cuda/linear/linear_wide.h"
#include "ops/cuda/linear/linear_wide_tiles.h"

namespace lapidary::cuda {
namespace {

// Up to here the bytes count, not yet the arithmetic.
constexpr int kFewRows = kFewestGemmRows - 1;

// Few rows and a weight that all multiprocessors' shared memory can hold at once: what counts is
// how early it gets there. Small blocks, two of which find room beside each other, start early.
WidePlan PlanSmall(const DeviceInfo& device, const LinearCall& call) {
  const int enough_blocks = device.num_sms * 10 / 11;
  WidePlan plan{.tile_rows = 64};
  while (plan.split < 8 && 4 * plan.split <= NumWideKBlocks(call.in_dim()) &&
         NumWideTiles(call, 64) * plan.split < enough_blocks) {
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
  const int columns = WideColumns(TileType::kBf16, std::min(call.rows, kMaxWideRows));
  const int copies = (NumWideKBlocks(call.in_dim()) + split - 1) / split;
  CostedPlan best;
  for (const int tile_rows : {64, 128, 192}) {
    if (NumWideTiles(call, tile_rows) * split > device.cluster_blocks[split]) continue;
    const double cost = copies * WideStageBytes(TileType::kBf16, tile_rows, columns) / 80.0 +
                        0.4 * tile_rows * columns + (split > 1 ? 3000.0 : 0.0);
    if (best.cost != 0.0 && cost >= best.cost) continue;
    best = {{.tile_rows = tile_rows, .split = split, .alone = true}, cost};
  }
  return best;
}

// How long a block takes for its part of 64 columns of k, in ns, while all its SM's blocks are at
// work; fitted to measurements at the models' shapes (docs/lab/2026-11-quantised-gpu.md).
double TiledBlockNs(TileType type, const WidePlan& plan, int columns) {
  const bool is_4_bit = Is4Bit(type);
  if (plan.scales_last) return is_4_bit ? 360.0 : 410.0;
  if (plan.tile_rows == kTallWideRows)
    return is_4_bit ? 370.0 + 5.0 * columns : 600.0 + 3.0 * columns;
  if (WideBlocksPerSm(type, plan.tile_rows, columns) == 2) {
    return is_4_bit ? 360.0 + 5.6 * columns : 450.0 + 3.7 * columns;
  }
  return is_4_bit ? 180.0 + 2.5 * columns : 350.0 + 1.7 * columns;
}

// Quantised weights: the tiles and the split with the lowest cost. Blocks take turns on the SMs
// that clusters of their size can use; each has something to do before and after its products, and
// more where it must meet others.
WidePlan PlanTiled(const DeviceInfo& device, const LinearCall& call) {
  constexpr double kTurnNs = 1600.0;
  constexpr double kExchangeNs = 2800.0;
  const TileType type = TileTypeOf(call.weight);
  const int row_parts = (call.rows + kMaxWideRows - 1) / kMaxWideRows;
  const int rows = (call.rows + row_parts - 1) / row_parts;
  const int columns = WideColumns(type, rows);
  const int num_k_blocks = NumWideKBlocks(call.in_dim());
  WidePlan best;
  double best_cost = 0.0;
  for (const int tile_rows : {kTiledWideRows, kTallWideRows}) {
    if (tile_rows == kTallWideRows && (rows < kFewestTallRows || rows > kMostTallRows)) continue;
    WidePlan plan{
        .tile_rows = tile_rows, .scales_last = rows <= kMaxScaledLastRows, .row_parts = row_parts};
    for (plan.split = 1; plan.split <= std::min(DeviceInfo::kMaxCluster, num_k_blocks);
         ++plan.split) {
      const int at_once =
          device.cluster_blocks[plan.split] * WideBlocksPerSm(type, tile_rows, columns);
      const int blocks = NumWideTiles(call, tile_rows) * row_parts * plan.split;
      const int turns = (blocks + at_once - 1) / at_once;
      const int k_blocks = (num_k_blocks + plan.split - 1) / plan.split;
      const double cost = turns * (k_blocks * TiledBlockNs(type, plan, columns) + kTurnNs +
                                   (plan.split > 1 ? kExchangeNs : 0.0));
      if (best_cost != 0.0 && cost >= best_cost) continue;
      best_cost = cost;
      best = plan;
    }
  }
  return best;
}

// For weights of so many tiles that blocks are busy without splitting anything.
WidePlan PlanMany(const LinearCall& call) {
  return {.tile_rows = 128, .persistent = call.rows <= kFewRows};
}

CostedPlan PlanBestSplit(const DeviceInfo& device, const LinearCall& call) {
  CostedPlan best;
  const int max_split = std::min(DeviceInfo::kMaxCluster, NumWideKBlocks(call.in_dim()));
  for (int split = 1; split <= max_split; ++split) {
    const CostedPlan plan = PlanSplit(device, call, split);
    if (plan.cost == 0.0) continue;
    if (best.cost == 0.0 || plan.cost < best.cost) best = plan;
  }
  return best;
}

}  // namespace

WidePlan PlanWide(const DeviceInfo& device, const LinearCall& call) {
  if (IsTiled(call.weight)) return PlanTiled(device, call);
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
  if (call.rows > kMaxWideRows || IsTiled(call.weight)) {
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
  return call.epilogue != Epilogue::kGatedGelu || NumWideTiles(call, 128) <= 2 * device.num_sms;
}

}  // namespace lapidary::cuda
