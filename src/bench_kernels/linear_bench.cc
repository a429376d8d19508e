#include "bench_kernels/linear_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "bench_kernels/random_values.h"
#include "ops/cuda/gemm_lt.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/linear_skinny.h"

namespace lapidary {
namespace {

using cuda::bf16;
using cuda::Epilogue;
using cuda::LaunchContext;
using cuda::LinearCall;
using cuda::SkinnyPlan;

constexpr int64_t kPoolBytes = int64_t{9} << 30;  // weights; every launch takes other ones
constexpr int64_t kOutputBytes = int64_t{512} << 20;
constexpr int64_t kRotatedBytes = int64_t{250} << 20;  // four times the L2 cache
constexpr int kMaxRows = 4096;
constexpr int kMaxDim = 21504;
constexpr int kRowCounts[] = {1, 2, 4, 8, 16, 32, 64, 80, 128, 512, 4096};

struct Shape {
  const char* name;
  int in_dim;
  int out_dim;
  Epilogue epilogue;
  bool residual;
};

constexpr Shape kShapes[] = {
    {"e2b qkv", 1536, 2560, Epilogue::kStore, true},
    {"e2b qkv_full", 1536, 5120, Epilogue::kStore, true},
    {"e2b q_shared", 1536, 2048, Epilogue::kStore, true},
    {"e2b o", 2048, 1536, Epilogue::kStore, false},
    {"e2b o_full", 4096, 1536, Epilogue::kStore, false},
    {"e2b gate_up", 1536, 12288, Epilogue::kGatedGelu, true},
    {"e2b gate_up_wide", 1536, 24576, Epilogue::kGatedGelu, true},
    {"e2b down", 6144, 1536, Epilogue::kStore, false},
    {"e2b down_wide", 12288, 1536, Epilogue::kStore, false},
    {"e2b ple_gate", 1536, 256, Epilogue::kGeluMul, true},
    {"e2b ple_proj", 256, 1536, Epilogue::kStore, false},
    {"e2b head", 1536, 262144, Epilogue::kSoftcap, true},
    {"e4b qkv", 2560, 3072, Epilogue::kStore, true},
    {"e4b o", 2048, 2560, Epilogue::kStore, false},
    {"e4b gate_up", 2560, 20480, Epilogue::kGatedGelu, true},
    {"e4b down", 10240, 2560, Epilogue::kStore, false},
    {"12b qkv", 3840, 8192, Epilogue::kStore, true},
    {"12b o", 4096, 3840, Epilogue::kStore, false},
    {"12b gate_up", 3840, 30720, Epilogue::kGatedGelu, true},
    {"12b down", 15360, 3840, Epilogue::kStore, false},
    {"26b qkv", 2816, 8192, Epilogue::kStore, true},
    {"26b o", 4096, 2816, Epilogue::kStore, false},
    {"31b qkv", 5376, 16384, Epilogue::kStore, true},
    {"31b o", 8192, 5376, Epilogue::kStore, false},
    {"31b gate_up", 5376, 43008, Epilogue::kGatedGelu, true},
    {"31b down", 21504, 5376, Epilogue::kStore, false},
};

struct Layer {
  const char* name;
  int hidden, qkv, attention, mlp, ple;  // mlp: width; ple 0: none
  int num_layers;
};

constexpr Layer kLayers[] = {
    {"e2b layer", 1536, 2560, 2048, 6144, 256, 30},
    {"e4b layer", 2560, 3072, 2048, 10240, 256, 30},
    {"12b layer", 3840, 8192, 4096, 15360, 0, 16},
    {"31b layer", 5376, 16384, 8192, 21504, 0, 9},
};

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t size) : size_(size) {
    LAPIDARY_CUDA_CHECK(cudaMalloc(&data_, size * sizeof(T)));
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* get() { return data_; }
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  T* data_ = nullptr;
};

class LinearBench {
 public:
  LinearBench()
      : runner_({.max_rows = kMaxRows}),
        invariant_runner_({.batch_invariant = true, .max_rows = kMaxRows}),
        pool_(kPoolBytes / sizeof(bf16)),
        x_(int64_t{kMaxRows} * kMaxDim),
        x_scratch_(int64_t{kMaxRows} * kMaxDim),
        block_out_(int64_t{kMaxRows} * kMaxDim),
        multiplier_(int64_t{kMaxRows} * 256),
        hidden_(int64_t{kMaxRows} * 5376),
        hidden_out_(int64_t{kMaxRows} * 5376),
        norm_(5376),
        output_(kOutputBytes) {
    LAPIDARY_CUDA_CHECK(cudaStreamCreate(&stream_));
    FillRandom(stream_, pool_.get(), pool_.size(), 0.04f);
    for (auto* array : {&x_, &block_out_, &multiplier_}) {
      FillRandom(stream_, array->get(), array->size(), 1.0f);
    }
    for (auto* array : {&hidden_, &hidden_out_, &norm_}) {
      FillRandom(stream_, array->get(), array->size(), 1.0f);
    }
    LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  ~LinearBench() { (void)cudaStreamDestroy(stream_); }

  double CopyGbps() {
    const int64_t bytes = kPoolBytes / 4;
    const double us = TimeGraphUs(stream_, 4, [&](int i) {
      LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(pool_.get() + (i % 2) * bytes, pool_.get() + bytes / 2,
                                          bytes, cudaMemcpyDeviceToDevice, stream_));
    });
    FillRandom(stream_, pool_.get(), pool_.size(), 0.04f);
    return 2.0 * bytes / us * 1e-3;
  }

  // Calls run(context, call) for a graph's launches, each with other weights.
  template <typename Run>
  double Time(const Shape& shape, int rows, bool dependent, const Run& run) {
    const int64_t weight_size = int64_t{shape.in_dim} * shape.out_dim;
    const double work_us = 2.0 * rows * weight_size / 600e6 + 2.0 * weight_size / 4e6;
    int num_launches = static_cast<int>(kRotatedBytes / (2 * weight_size)) + 1;
    num_launches = std::clamp(num_launches, 4, std::max(4, static_cast<int>(5000.0 / work_us)));
    num_launches = std::min(num_launches, 160);
    return TimeGraphUs(stream_, num_launches, [&](int i) {
      const cuda::ResidualUpdate update{.hidden = hidden_.get(),
                                        .block_out = block_out_.get(),
                                        .post_norm = norm_.get(),
                                        .hidden_out = hidden_out_.get(),
                                        .pre_norm = norm_.get()};
      LinearCall call = MakeCall(shape, rows);
      call.weight = Weights(i * weight_size, weight_size);
      if (shape.residual) {
        call.residual = &update;
        call.x = x_scratch_.get();
      }
      run(LaunchContext{stream_, dependent && i > 0}, call);
    });
  }

  LinearCall MakeCall(const Shape& shape, int rows) {
    return {.weight = pool_.get(),
            .out_dim = shape.out_dim,
            .in_dim = shape.in_dim,
            .rows = rows,
            .x = x_.get(),
            .epilogue = shape.epilogue,
            .y = output_.get(),
            .multiplier = multiplier_.get(),
            .multiplier_stride = 256,
            .softcap = 30.0f};
  }

  double TimeRunner(const Shape& shape, int rows, bool batch_invariant) {
    return Time(shape, rows, true, [&](const LaunchContext& context, const LinearCall& call) {
      (batch_invariant ? invariant_runner_ : runner_).Run(context, call);
    });
  }

  double TimeLibrary(const Shape& shape, int rows) {
    return Time(shape, rows, false, [&](const LaunchContext& context, const LinearCall& call) {
      gemm_.Run(context.stream, call.weight, x_.get(), call.y, call.epilogue == Epilogue::kSoftcap,
                call.out_dim, call.in_dim, rows);
    });
  }

  // cuBLASLt's candidates for a product; the first is what it would take.
  std::vector<KernelRow> TimeCandidates(const Shape& shape, int rows, int max_candidates) {
    const bool f32_output = shape.epilogue == Epilogue::kSoftcap;
    std::vector<KernelRow> timed;
    for (const cublasLtMatmulAlgo_t& algorithm :
         gemm_.Candidates(f32_output, shape.out_dim, shape.in_dim, rows, max_candidates)) {
      bool runs = true;
      const double us =
          Time(shape, rows, false, [&](const LaunchContext& context, const LinearCall& call) {
            runs = runs && gemm_.RunWith(algorithm, context.stream, call.weight, x_.get(), call.y,
                                         f32_output, call.out_dim, call.in_dim, rows);
          });
      if (!runs) continue;
      timed.push_back(MakeLinearRow(shape.name, cuda::DescribeAlgorithm(algorithm), rows,
                                    shape.in_dim, shape.out_dim, us));
      timed.back().baseline_us = timed.front().us;
    }
    return timed;
  }

  double TimePlan(const Shape& shape, int rows, const SkinnyPlan& plan, bool dependent) {
    return Time(shape, rows, dependent, [&](const LaunchContext& context, const LinearCall& call) {
      cuda::RunSkinny(context, call, plan);
    });
  }

  // The linear calls of decoder layers, one after the other, without attention between them.
  // change(plan, in_dim) may alter the default plan. Us per layer.
  template <typename Change>
  double TimeLayers(const Layer& layer, int rows, bool dependent, const Change& change) {
    const double us = TimeGraphUs(stream_, 1, [&](int) {
      int64_t position = 0;
      bool first = true;
      float* hidden = hidden_.get();
      float* other = hidden_out_.get();
      bf16* out = block_out_.get();
      bf16* inner = reinterpret_cast<bf16*>(output_.get());
      const auto run = [&](int in_dim, int out_dim, Epilogue epilogue, bool residual, bf16* x,
                           bf16* y) {
        const cuda::ResidualUpdate update{.hidden = hidden,
                                          .block_out = out,
                                          .post_norm = norm_.get(),
                                          .scale = 0.5f,
                                          .hidden_out = other,
                                          .pre_norm = norm_.get()};
        LinearCall call = MakeCall({"", in_dim, out_dim, epilogue, residual}, rows);
        call.weight = Weights(position, int64_t{in_dim} * out_dim);
        position += int64_t{in_dim} * out_dim;
        call.x = residual ? x_scratch_.get() : x;
        call.y = y;
        if (residual) {
          call.residual = &update;
          std::swap(hidden, other);
        }
        SkinnyPlan plan = cuda::PlanSkinny(call);
        change(plan, in_dim);
        cuda::RunSkinny({stream_, dependent && !first}, call, plan);
        first = false;
      };
      for (int i = 0; i < layer.num_layers; ++i) {
        run(layer.hidden, layer.qkv, Epilogue::kStore, true, nullptr, inner);
        run(layer.attention, layer.hidden, Epilogue::kStore, false, inner, out);
        run(layer.hidden, 2 * layer.mlp, Epilogue::kGatedGelu, true, nullptr, inner);
        run(layer.mlp, layer.hidden, Epilogue::kStore, false, inner, out);
        if (layer.ple > 0) {
          run(layer.hidden, layer.ple, Epilogue::kGeluMul, true, nullptr, inner);
          run(layer.ple, layer.hidden, Epilogue::kStore, false, inner, out);
        }
      }
    });
    return us / layer.num_layers;
  }

 private:
  // Some weights of the pool, 256-byte aligned, at about `position` of an endless stream.
  const bf16* Weights(int64_t position, int64_t size) {
    return pool_.get() + position % (pool_.size() - size) / 128 * 128;
  }

  cuda::LinearRunner runner_;
  cuda::LinearRunner invariant_runner_;
  cuda::GemmLt gemm_;
  DeviceArray<bf16> pool_, x_, x_scratch_, block_out_, multiplier_;
  DeviceArray<float> hidden_, hidden_out_, norm_;
  DeviceArray<std::byte> output_;
  cudaStream_t stream_ = nullptr;
};

double LayerBytes(const Layer& layer) {
  return 2.0 * layer.hidden * (layer.qkv + layer.attention + 3.0 * layer.mlp + 2.0 * layer.ple);
}

bool Selected(const LinearBenchOptions& options, const std::string& name) {
  return name.find(options.only) != std::string::npos;
}

void BenchShapes(const LinearBenchOptions& options, LinearBench& bench, LinearBenchResult& result) {
  for (const Shape& shape : kShapes) {
    if (!Selected(options, shape.name)) continue;
    for (const int rows : kRowCounts) {
      if (shape.epilogue == Epilogue::kSoftcap && rows > 128) continue;  // logits are for few rows
      const double baseline = bench.TimeLibrary(shape, rows);
      for (const bool batch_invariant : {false, true}) {
        if (batch_invariant && (rows <= 16 || std::string(shape.name).find("31b") == 0)) continue;
        result.shapes.push_back(MakeLinearRow(shape.name, batch_invariant ? "batch_invariant" : "",
                                              rows, shape.in_dim, shape.out_dim,
                                              bench.TimeRunner(shape, rows, batch_invariant)));
        result.shapes.back().baseline_us = baseline;
      }
    }
  }
}

void BenchVariants(const LinearBenchOptions& options, LinearBench& bench,
                   LinearBenchResult& result) {
  for (const Shape& shape : kShapes) {
    if (!Selected(options, shape.name)) continue;
    for (const int rows : {1, 4, 16, 32}) {
      const LinearCall call = bench.MakeCall(shape, rows);
      const SkinnyPlan standard = cuda::PlanSkinny(call);
      const double standard_us = bench.TimePlan(shape, rows, standard, true);
      const auto add = [&](const std::string& variant, const SkinnyPlan& plan, bool dependent) {
        if (!cuda::SkinnyFits(call, plan)) return;
        result.variants.push_back(MakeLinearRow(shape.name, variant, rows, shape.in_dim,
                                                shape.out_dim,
                                                bench.TimePlan(shape, rows, plan, dependent)));
        result.variants.back().baseline_us = standard_us;
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
        if ((rows == 4 || rows == 32) && cluster != standard.cluster) continue;
        if (cluster > 1 && (shape.in_dim + 63) / 64 < cluster * cuda::kSkinnyWarps) continue;
        for (const int depth : {4, 6, 8}) {
          for (const int blocks : {1, 2, 3, 4}) {
            for (const bool ring : {false, true}) {
              if (!ring && blocks == 4) continue;  // more than its registers allow
              SkinnyPlan plan = standard;
              plan.cluster = cluster;
              plan.depth = depth;
              plan.blocks_per_sm = blocks;
              plan.shared_ring = ring;
              add(fmt::format("{}c{} d{} b{}", ring ? "ring " : "", cluster, depth, blocks), plan,
                  true);
            }
          }
        }
      }
    }
  }
}

void BenchAlgorithms(const LinearBenchOptions& options, LinearBench& bench,
                     LinearBenchResult& result) {
  for (const Shape& shape : kShapes) {
    if (!Selected(options, shape.name)) continue;
    for (const int rows : {32, 64, 80, 128, 512, 4096}) {
      if (shape.epilogue == Epilogue::kSoftcap && rows > 128) continue;
      const std::vector<KernelRow> rows_timed = bench.TimeCandidates(shape, rows, 8);
      result.algorithms.insert(result.algorithms.end(), rows_timed.begin(), rows_timed.end());
    }
  }
}

void BenchLayers(const LinearBenchOptions& options, LinearBench& bench, LinearBenchResult& result) {
  for (const Layer& layer : kLayers) {
    if (!Selected(options, layer.name)) continue;
    double standard_us = 0;
    const auto add = [&](const std::string& variant, int rows, bool dependent, auto change) {
      const double us = bench.TimeLayers(layer, rows, dependent, change);
      if (variant.empty()) standard_us = us;
      const double bytes = LayerBytes(layer);
      result.layers.push_back({.name = layer.name,
                               .shape = fmt::format("{:.1f} MB", bytes * 1e-6),
                               .variant = variant,
                               .rows = rows,
                               .us = us,
                               .gbps = bytes / us * 1e-3,
                               .tflops = rows * bytes / us * 1e-6,
                               .floor_share = bytes / kFloorBytesPerSecond * 1e6 / us,
                               .baseline_us = standard_us});
    };
    for (const int rows : {1, 4, 16}) {
      add("", rows, true, [](SkinnyPlan&, int) {});
      if (rows != 1 && !options.variants) continue;
      add("not dependent", rows, false, [](SkinnyPlan&, int) {});
      if (rows == 16) continue;
      add("separate residual", rows, true, [](SkinnyPlan& p, int) { p.fused_residual_rows = 0; });
      for (const int blocks : {1, 2, 4}) {
        add(fmt::format("b{}", blocks), rows, true,
            [=](SkinnyPlan& p, int) { p.blocks_per_sm = blocks; });
      }
      for (const int depth : {4, 6, 8}) {
        for (const int blocks : {2, 3}) {
          add(fmt::format("d{} b{}", depth, blocks), rows, true, [=](SkinnyPlan& p, int) {
            p.depth = depth;
            p.blocks_per_sm = blocks;
          });
        }
      }
      for (const int depth : {4, 6, 8}) {
        for (const int blocks : {2, 3, 4}) {
          add(fmt::format("ring d{} b{}", depth, blocks), rows, true, [=](SkinnyPlan& p, int) {
            p.depth = depth;
            p.blocks_per_sm = blocks;
            p.shared_ring = true;
          });
        }
      }
      add("half the cluster", rows, true, [](SkinnyPlan& p, int) {
        p.cluster = std::max(1, p.cluster / 2);
        p.depth = 6;
      });
      add("twice the cluster", rows, true, [](SkinnyPlan& p, int in_dim) {
        if ((in_dim + 63) / 64 >= 2 * p.cluster * cuda::kSkinnyWarps && p.cluster < 8) {
          p.cluster *= 2;
          p.depth = 4;
        }
      });
    }
  }
}

// Per name and number of rows: the baseline and the fastest variants.
std::string FormatBest(const std::vector<KernelRow>& all, size_t count) {
  std::map<std::pair<std::string, int>, std::vector<KernelRow>> groups;
  for (const KernelRow& row : all) groups[{row.name, row.rows}].push_back(row);
  std::string text;
  for (auto& [key, rows] : groups) {
    std::sort(rows.begin(), rows.end(),
              [](const KernelRow& a, const KernelRow& b) { return a.us < b.us; });
    text += fmt::format("{} {} rows: {:.1f}", key.first, key.second, rows[0].baseline_us);
    for (size_t i = 0; i < std::min(count, rows.size()); ++i) {
      text += fmt::format(" | {} {:.1f}", rows[i].variant, rows[i].us);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

LinearBenchResult BenchLinear(const LinearBenchOptions& options) {
  LinearBench bench;
  LinearBenchResult result;
  result.copy_gbps = bench.CopyGbps();
  BenchShapes(options, bench, result);
  if (options.variants) {
    BenchVariants(options, bench, result);
    BenchAlgorithms(options, bench, result);
  }
  BenchLayers(options, bench, result);
  return result;
}

std::string FormatLinearBench(const LinearBenchResult& result) {
  std::string text;
  if (!result.variants.empty()) {
    text += "cuBLASLt: first candidate's us, then the best (id, tile, stages, split, ...)\n";
    text += FormatBest(result.algorithms, 1);
    text += "\nplans (cluster, depth, blocks): default us, then the best three\n";
    text += FormatBest(result.variants, 3) + "\n";
  }
  text += fmt::format(
      "device copy, read + written: {:.0f} GB/s; shares are of {:.1f} TB/s\n\n"
      "us (share of the floor, times faster than cuBLASLt's product alone) by rows\n",
      result.copy_gbps, kFloorBytesPerSecond * 1e-12);
  std::string line_name;
  for (const KernelRow& row : result.shapes) {
    const std::string name =
        fmt::format("{} {}{}", row.name, row.shape, row.variant.empty() ? "" : " " + row.variant);
    if (!row.variant.empty()) continue;
    if (name != line_name) text += fmt::format("{}{}:", line_name.empty() ? "" : "\n", name);
    line_name = name;
    text += fmt::format(" {}:{:.1f}({:.0f}%,{:.2f})", row.rows, row.us, 100 * row.floor_share,
                        row.baseline_us / row.us);
  }
  text += "\n\nbatch invariant: times slower than cuBLASLt, by rows\n";
  line_name.clear();
  for (const KernelRow& row : result.shapes) {
    if (row.variant.empty()) continue;
    if (row.name != line_name)
      text += fmt::format("{}{}:", line_name.empty() ? "" : "\n", row.name);
    line_name = row.name;
    text += fmt::format(" {}:{:.2f}", row.rows, row.us / row.baseline_us);
  }
  text += "\n\ndecoder layers, linear calls alone: us per layer (share of the floor)\n";
  line_name.clear();
  for (const KernelRow& row : result.layers) {
    const std::string name = fmt::format("{} ({}), {} rows", row.name, row.shape, row.rows);
    if (name != line_name) text += fmt::format("{}{}:", line_name.empty() ? "" : "\n", name);
    line_name = name;
    text += fmt::format(" {} {:.2f} ({:.0f}%);", row.variant.empty() ? "default" : row.variant,
                        row.us, 100 * row.floor_share);
  }
  return text + "\n";
}

}  // namespace lapidary
