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

// Quantised weights: the split with the lowest cost by this model, in ns. An SM has two blocks at
// work (of more columns one), and turns a block's k into bf16 no faster than this; a block has
// something to do before and after, and more where it must meet others.
WidePlan PlanTiled(const DeviceInfo& device, const LinearCall& call) {
  constexpr double kBlockNs = 2500.0;
  constexpr double kExchangeNs = 1500.0;
  const TileType type = TileTypeOf(call.weight);
  const int row_parts = (call.rows + kMaxWideRows - 1) / kMaxWideRows;
  const int columns = WideColumns(type, (call.rows + row_parts - 1) / row_parts);
  const int of_sm = WideBlocksPerSm(type, kTiledWideRows, columns);
  const int at_once = of_sm * device.num_sms;
  const double k_block_ns = of_sm * std::max(Is4Bit(type) ? 190.0 : 260.0, 45.0 + 1.3 * columns);
  const int num_k_blocks = NumWideKBlocks(call.in_dim());
  WidePlan best{.tile_rows = kTiledWideRows,
                .scales_last = columns <= kMaxScaledLastRows,
                .row_parts = row_parts};
  double best_cost = 0.0;
  for (int split = 1; split <= std::min(DeviceInfo::kMaxCluster, num_k_blocks); ++split) {
    const int blocks = NumWideTiles(call, kTiledWideRows) * row_parts * split;
    if (split > 1 && blocks > 4 * at_once) break;
    const int turns = (blocks + at_once - 1) / at_once;
    const int k_blocks = (num_k_blocks + split - 1) / split;
    const double cost =
        turns * (k_blocks * k_block_ns + kBlockNs + (split > 1 ? kExchangeNs : 0.0));
    if (best_cost != 0.0 && cost >= best_cost) continue;
    best_cost = cost;
    best.split = split;
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
