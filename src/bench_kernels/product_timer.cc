#include "bench_kernels/product_timer.h"

#include <algorithm>

#include "base/check.h"
#include "bench_kernels/device_copy.h"
#include "bench_kernels/random_values.h"
#include "ops/cuda/bf16_matrix.h"

namespace lapidary {
namespace {

using cuda::bf16;
using cuda::Epilogue;
using cuda::LaunchContext;
using cuda::LinearCall;
using cuda::SkinnyPlan;

constexpr int64_t kPoolBytes = int64_t{9} << 30;           // weights; every launch takes other ones
constexpr int64_t kDequantisedBytes = int64_t{512} << 20;  // a layer's largest matrix in bf16
constexpr int64_t kOutputBytes = int64_t{512} << 20;
constexpr int kRotatedCaches = 4;  // times the L2 cache
constexpr int kMaxDim = 21504;
constexpr int kMaxHidden = 5376;
constexpr int kMaxPleWidth = 256;
constexpr int kReplays = 9;

ProductShape WithoutResidual(ProductShape shape) {
  shape.residual = false;
  return shape;
}

}  // namespace

ProductTimer::ProductTimer(const DeviceInfo& device)
    : device_(device),
      runner_({.max_rows = kMaxRows, .dequantised_bytes = kDequantisedBytes}),
      invariant_runner_(
          {.batch_invariant = true, .max_rows = kMaxRows, .dequantised_bytes = kDequantisedBytes}),
      pool_(kPoolBytes / sizeof(bf16)),
      x_(int64_t{kMaxRows} * kMaxDim),
      x_scratch_(int64_t{kMaxRows} * kMaxDim),
      block_out_(int64_t{kMaxRows} * kMaxDim),
      multiplier_(int64_t{kMaxRows} * kMaxPleWidth),
      hidden_(int64_t{kMaxRows} * kMaxHidden),
      hidden_out_(int64_t{kMaxRows} * kMaxHidden),
      norm_(kMaxHidden),
      output_(kOutputBytes) {
  FillRandom(stream_.get(), pool_.get(), pool_.size(), 0.04f);
  for (auto* array : {&x_, &block_out_, &multiplier_}) {
    FillRandom(stream_.get(), array->get(), array->size(), 1.0f);
  }
  for (auto* array : {&hidden_, &hidden_out_, &norm_}) {
    FillRandom(stream_.get(), array->get(), array->size(), 1.0f);
  }
  LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
}

double ProductTimer::CopyGbps() {
  const int64_t size = pool_.size() / 4 / 128 * 128;
  const int64_t bytes = size * static_cast<int64_t>(sizeof(bf16));
  const auto time = [&] {
    return TimeGraphUs(stream_.get(), 4, [&](int i) {
      CopyOnDevice(stream_.get(), pool_.get() + (i % 2) * size, pool_.get() + (2 + i % 2) * size,
                   bytes);
    });
  };
  // A card that was idle takes a while to raise its clocks.
  double us = time();
  for (int round = 0; round < 4; ++round) us = std::min(us, time());
  return 2.0 * static_cast<double>(bytes) / us * 1e-3;
}

const void* ProductTimer::Weights(int64_t position, int64_t num_bytes) {
  return reinterpret_cast<const std::byte*>(pool_.get()) +
         position % (kPoolBytes - num_bytes) / 256 * 256;
}

LinearCall ProductTimer::MakeCall(const ProductShape& shape, int rows) {
  CHECK(rows <= kMaxRows && shape.in_dim <= kMaxDim) << shape.name << " at " << rows << " rows";
  CHECK(!shape.residual || shape.in_dim <= kMaxHidden) << shape.name;
  CHECK_LE(int64_t{rows} * shape.out_dim * (shape.f32_output() ? 4 : 2), kOutputBytes);
  return {.weight = {.data = pool_.get(),
                     .format = shape.weights,
                     .rows = shape.out_dim,
                     .cols = shape.in_dim},
          .rows = rows,
          .x = x_.get(),
          .epilogue = shape.epilogue,
          .y = output_.get(),
          .multiplier = multiplier_.get(),
          .multiplier_stride = kMaxPleWidth,
          .softcap = 30.0f};
}

template <typename Run>
double ProductTimer::Time(const ProductShape& shape, int rows, bool dependent, int num_replays,
                          const Run& run) {
  const int64_t weight_size = int64_t{shape.in_dim} * shape.out_dim;
  const int64_t weight_bytes = BytesOf(shape.weights, shape.out_dim, shape.in_dim).total();
  const double work_us = 2.0 * rows * static_cast<double>(weight_size) / 600e6 +
                         static_cast<double>(weight_bytes) / 4e6;
  int num_launches = static_cast<int>(kRotatedCaches * device_.l2_bytes / weight_bytes) + 1;
  num_launches = std::clamp(num_launches, 4, std::max(4, static_cast<int>(5000.0 / work_us)));
  num_launches = std::min(num_launches, 160);
  return TimeGraphUs(
      stream_.get(), num_launches,
      [&](int i) {
        const cuda::ResidualUpdate update{.hidden = hidden_.get(),
                                          .block_out = block_out_.get(),
                                          .post_norm = norm_.get(),
                                          .hidden_out = hidden_out_.get(),
                                          .pre_norm = norm_.get()};
        LinearCall call = MakeCall(shape, rows);
        call.weight.data = Weights(i * weight_bytes, weight_bytes);
        if (shape.residual) {
          call.residual = &update;
          call.x = x_scratch_.get();
        }
        run(Context(dependent && i > 0), call);
      },
      num_replays);
}

double ProductTimer::TimeRunner(const ProductShape& shape, int rows, bool batch_invariant) {
  return Time(shape, rows, true, kReplays,
              [&](const LaunchContext& context, const LinearCall& call) {
                (batch_invariant ? invariant_runner_ : runner_).Run(context, call);
              });
}

double ProductTimer::TimePlan(const ProductShape& shape, int rows, const SkinnyPlan& plan,
                              bool dependent) {
  return Time(shape, rows, dependent, kReplays,
              [&](const LaunchContext& context, const LinearCall& call) {
                cuda::RunSkinny(context, call, plan);
              });
}

double ProductTimer::TimePlan(const ProductShape& shape, int rows, const cuda::WidePlan& plan) {
  return Time(WithoutResidual(shape), rows, true, kReplays,
              [&](const LaunchContext& context, const LinearCall& call) {
                cuda::RunWide(context, call, plan);
              });
}

double ProductTimer::TimePlan(const ProductShape& shape, int rows, const cuda::LargePlan& plan) {
  return Time(WithoutResidual(shape), rows, true, kReplays,
              [&](const LaunchContext& context, const LinearCall& call) {
                cuda::RunLarge(context, call, plan);
              });
}

double ProductTimer::TimeLibrary(const ProductShape& shape, int rows) {
  return Time(WithoutResidual(shape), rows, true, kReplays,
              [&](const LaunchContext& context, const LinearCall& call) {
                runner_.RunByLibrary(context, call);
              });
}

double ProductTimer::TimeAlgorithm(const ProductShape& of, int rows,
                                   const cublasLtMatmulAlgo_t& algorithm, int num_replays) {
  ProductShape shape = of;
  shape.weights = {};
  bool runs = true;
  const double us = Time(
      shape, rows, false, num_replays, [&](const LaunchContext& context, const LinearCall& call) {
        runs = runs && gemm_.RunWith(algorithm, context.stream, call.weight.As<bf16>(), x_.get(),
                                     call.y, shape.f32_output(), shape.out_dim, shape.in_dim, rows);
      });
  return runs ? us : -1.0;
}

double ProductTimer::LayerChainBytes(const ModelPlan& plan) {
  const LayerPlan& layer = plan.layers.front();
  const double ple = plan.ple ? plan.ple->width : 0;
  const double heads = layer.num_heads + layer.num_kv_heads * (layer.k_is_v ? 1 : 2);
  return 2.0 * plan.hidden_size *
         (heads * layer.head_dim + layer.num_heads * layer.head_dim + 3.0 * layer.mlp_width +
          2.0 * ple);
}

double ProductTimer::TimeLayerChain(const ModelPlan& plan, int rows, bool dependent,
                                    const ChangePlan& change) {
  const LayerPlan& layer = plan.layers.front();
  const int num_layers =
      std::min(plan.num_layers, static_cast<int>(0.9 * kPoolBytes / LayerChainBytes(plan)));
  const int heads = layer.num_heads + layer.num_kv_heads * (layer.k_is_v ? 1 : 2);
  const double us = TimeGraphUs(stream_.get(), 1, [&](int) {
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
      LinearCall call = MakeCall({"chain", in_dim, out_dim, epilogue, residual}, rows);
      call.weight.data = Weights(position, call.weight.bytes().total());
      position += call.weight.bytes().total();
      call.x = residual ? x_scratch_.get() : x;
      call.y = y;
      if (residual) {
        call.residual = &update;
        std::swap(hidden, other);
      }
      const LaunchContext context = Context(dependent && !first);
      first = false;
      if (!change) {
        runner_.Run(context, call);
        return;
      }
      SkinnyPlan skinny = cuda::PlanSkinny(call);
      change(skinny, in_dim);
      cuda::RunSkinny(context, call, skinny);
    };
    for (int i = 0; i < num_layers; ++i) {
      run(plan.hidden_size, heads * layer.head_dim, Epilogue::kStore, true, nullptr, inner);
      run(layer.num_heads * layer.head_dim, plan.hidden_size, Epilogue::kStore, false, inner, out);
      run(plan.hidden_size, 2 * layer.mlp_width, Epilogue::kGatedGelu, true, nullptr, inner);
      run(layer.mlp_width, plan.hidden_size, Epilogue::kStore, false, inner, out);
      if (!plan.ple) continue;
      run(plan.hidden_size, plan.ple->width, Epilogue::kGeluMul, true, nullptr, inner);
      run(plan.ple->width, plan.hidden_size, Epilogue::kStore, false, inner, out);
    }
  });
  return us / num_layers;
}

}  // namespace lapidary
