#include "bench_kernels/linear_bench.h"

#include <fmt/format.h>

#include <algorithm>

namespace lapidary {
namespace {

using cuda::LargePlan;
using cuda::LinearCall;
using cuda::SkinnyPlan;
using cuda::WidePlan;

constexpr int kReplays = 9;
constexpr int kMaxLogitRows = 256;  // logits are for few rows

void BenchShapes(const std::vector<ProductShape>& shapes, ProductTimer& timer,
                 const BenchSink& sink) {
  for (const ProductShape& shape : shapes) {
    for (const int rows : sink.rows) {
      if (shape.f32_output() && rows > kMaxLogitRows) continue;
      double baseline_us = 0.0;
      for (const bool batch_invariant : {false, true}) {
        if (batch_invariant && !sink.variants) continue;
        KernelRow row = MakeProductRow(shape.name, batch_invariant ? "batch_invariant" : "", rows,
                                       shape.in_dim, shape.out_dim, 0.0, shape.weights);
        if (!sink.wants(row)) continue;
        if (baseline_us == 0.0) {
          // The product alone, of weights in bf16, by what the library itself would choose.
          const auto algorithm = timer.Candidates(shape, rows, 1).front();
          baseline_us = timer.TimeAlgorithm(shape, rows, algorithm, kReplays);
        }
        row.baseline = "cuBLASLt, bf16";
        row.baseline_us = std::max(0.0, baseline_us);
        sink.Time(std::move(row), [&] { return timer.TimeRunner(shape, rows, batch_invariant); });
      }
    }
  }
}

void BenchPlans(const std::vector<ProductShape>& shapes, ProductTimer& timer,
                const BenchSink& sink) {
  for (const ProductShape& shape : shapes) {
    for (const int rows : {1, 4, 8}) {
      const LinearCall call = timer.MakeCall(shape, rows);
      const SkinnyPlan standard = cuda::PlanSkinny(call);
      double standard_us = 0.0;
      const auto add = [&](const std::string& variant, const SkinnyPlan& plan, bool dependent) {
        if (!cuda::SkinnyFits(sink.device, call, plan)) return;
        KernelRow row = MakeProductRow(shape.name, variant, rows, shape.in_dim, shape.out_dim, 0.0,
                                       shape.weights);
        if (!sink.wants(row)) return;
        if (standard_us == 0.0) standard_us = timer.TimePlan(shape, rows, standard, true);
        row.baseline = "the default plan";
        row.baseline_us = standard_us;
        sink.Time(std::move(row), [&] { return timer.TimePlan(shape, rows, plan, dependent); });
      };
      if (rows <= 4) {
        add("not dependent", standard, false);
        if (shape.residual) {
          SkinnyPlan plan = standard;
          plan.fused_residual_rows = 0;
          add("separate residual", plan, true);
        }
      }
      for (const int cluster : {1, 2, 4, 8}) {
        if (rows == 4 && cluster != standard.cluster) continue;
        if (cluster > 1 && (shape.in_dim + 63) / 64 < cluster * cuda::kSkinnyWarps) continue;
        for (const int depth : cuda::SkinnyDepthsOf(cuda::TileTypeOf(call.weight)).values) {
          if (depth == 0) continue;
          for (const int blocks : {1, 2, 3, 4}) {
            if (blocks > cuda::SkinnyBlocksPerSm(cuda::TileTypeOf(call.weight), depth)) continue;
            SkinnyPlan plan = standard;
            plan.cluster = cluster;
            plan.depth = depth;
            plan.blocks_per_sm = blocks;
            add(fmt::format("c{} d{} b{}", cluster, depth, blocks), plan, true);
          }
        }
      }
    }
  }
}

void BenchWidePlans(const std::vector<ProductShape>& shapes, ProductTimer& timer,
                    const BenchSink& sink) {
  for (const ProductShape& shape : shapes) {
    for (const int rows : {16, 32, 64, 80, 128}) {
      const WidePlan standard = cuda::PlanWide(sink.device, timer.MakeCall(shape, rows));
      double standard_us = 0.0;
      const auto add = [&](const std::string& variant, const WidePlan& plan) {
        KernelRow row = MakeProductRow(shape.name, variant, rows, shape.in_dim, shape.out_dim, 0.0,
                                       shape.weights);
        if (!sink.wants(row)) return;
        if (standard_us == 0.0) standard_us = timer.TimePlan(shape, rows, standard);
        row.baseline = "the default plan";
        row.baseline_us = standard_us;
        sink.Time(std::move(row), [&] { return timer.TimePlan(shape, rows, plan); });
      };
      const bool is_tiled = cuda::IsTiled(timer.MakeCall(shape, rows).weight);
      for (const int tile_rows : {64, 128, 192, 256}) {
        if (is_tiled ? tile_rows % 128 != 0 : tile_rows == 256) continue;
        if (tile_rows == 256 && (rows > cuda::kMostTallRows || rows < cuda::kFewestTallRows))
          continue;
        const int tiles = (shape.out_dim + tile_rows - 1) / tile_rows;
        for (int split = 1; split <= 8; ++split) {
          if (tiles * split > (split == 1 ? 4096
                               : is_tiled ? 600
                                          : 300) ||
              64 * split > shape.in_dim)
            continue;
          if (split < 8 && tiles * split < 88 && 128 * split <= shape.in_dim) continue;
          for (const bool alone : {false, true}) {
            if (is_tiled ? alone : alone ? tiles * split > sink.device.num_sms : tile_rows > 128)
              continue;
            for (const bool scales_last : {false, true}) {
              if (scales_last &&
                  !(is_tiled && tile_rows == 128 && rows <= cuda::kMaxScaledLastRows))
                continue;
              add(fmt::format("t{} k{}{}{}", tile_rows, split, alone ? " alone" : "",
                              scales_last ? " last" : ""),
                  {.tile_rows = tile_rows,
                   .split = split,
                   .alone = alone,
                   .scales_last = scales_last});
            }
          }
        }
        if (tiles > sink.device.num_sms && !is_tiled) {
          add(fmt::format("t{} persistent", tile_rows),
              {.tile_rows = tile_rows, .persistent = true});
        }
      }
    }
  }
}

void BenchLargePlans(const std::vector<ProductShape>& shapes, ProductTimer& timer,
                     const BenchSink& sink) {
  for (const ProductShape& shape : shapes) {
    if (shape.f32_output()) continue;  // The head, whose logits may not fit.
    for (const int rows : sink.rows) {
      if (rows > cuda::kMaxLargeRows) continue;
      const LinearCall call = timer.MakeCall(shape, rows);
      if (!cuda::LargeFits(call)) continue;
      double library_us = 0.0;
      for (const LargePlan& plan : cuda::LargePlans(sink.device, call)) {
        const bool is_default = plan == cuda::PlanLarge(sink.device, call).plan;
        KernelRow row = MakeProductRow(shape.name,
                                       fmt::format("t{} n{} k{}{}", plan.tile_rows, plan.columns,
                                                   plan.split, is_default ? " planned" : ""),
                                       rows, shape.in_dim, shape.out_dim, 0.0, shape.weights);
        if (!sink.wants(row)) continue;
        if (library_us == 0.0) library_us = timer.TimeLibrary(shape, rows);
        row.baseline = "cuBLASLt and epilogue";
        row.baseline_us = library_us;
        sink.Time(std::move(row), [&] { return timer.TimePlan(shape, rows, plan); });
      }
    }
  }
}

void BenchLayerChain(const std::string& model, const ModelPlan& plan, ProductTimer& timer,
                     const BenchSink& sink) {
  const double bytes = ProductTimer::LayerChainBytes(plan);
  for (const int rows : {1, 4, 16, 32, 80, 128}) {
    double standard_us = 0.0;
    const auto add = [&](const std::string& variant, bool dependent,
                         const ProductTimer::ChangePlan& change) {
      KernelRow row{.name = model + " linear calls of a layer",
                    .shape = fmt::format("{:.1f} MB", bytes * 1e-6),
                    .variant = variant,
                    .rows = rows,
                    .bytes = bytes,
                    .flops = rows * bytes};
      if (!sink.wants(row)) return;
      row.us = timer.TimeLayerChain(plan, rows, dependent, change);
      if (variant.empty()) standard_us = row.us;
      if (standard_us > 0.0 && !variant.empty()) {
        row.baseline = "the default plan";
        row.baseline_us = standard_us;
      }
      sink.add(std::move(row));
    };
    add("", true, nullptr);
    add("not dependent", false, nullptr);
    if (rows > 4) continue;
    add("separate residual", true, [](SkinnyPlan& p, int) { p.fused_residual_rows = 0; });
    for (const int depth : {4, 6, 8}) {
      for (const int blocks : {2, 3}) {
        add(fmt::format("d{} b{}", depth, blocks), true, [=](SkinnyPlan& p, int) {
          p.depth = depth;
          p.blocks_per_sm = blocks;
        });
      }
    }
    add("half the cluster", true, [](SkinnyPlan& p, int) {
      p.cluster = std::max(1, p.cluster / 2);
      p.depth = 6;
    });
    add("twice the cluster", true, [](SkinnyPlan& p, int in_dim) {
      if ((in_dim + 63) / 64 >= 2 * p.cluster * cuda::kSkinnyWarps && p.cluster < 8) {
        p.cluster *= 2;
        p.depth = 4;
      }
    });
  }
}

}  // namespace

void BenchLinear(const std::string& model, const ModelPlan& plan, ProductTimer& timer,
                 const BenchSink& sink, const WeightFormat& weights) {
  const std::vector<ProductShape> shapes = ProductShapes(model, plan, weights);
  BenchShapes(shapes, timer, sink);
  if (!sink.variants) return;
  BenchPlans(shapes, timer, sink);
  BenchWidePlans(shapes, timer, sink);
  if (weights != WeightFormat{}) return;
  BenchLargePlans(shapes, timer, sink);
  BenchLayerChain(model, plan, timer, sink);
}

}  // namespace lapidary
