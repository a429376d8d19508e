// Matrix products over rotating weights, so that every launch reads its weights from memory.
#pragma once

#include <cstddef>

#include "bench_kernels/device_array.h"
#include "bench_kernels/kernel_timing.h"
#include "bench_kernels/product_shapes.h"
#include "ops/cuda/linear/gemm_lt.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/linear/linear_large.h"
#include "ops/cuda/linear/linear_skinny.h"
#include "ops/cuda/linear/linear_wide.h"

namespace lapidary {

class ProductTimer {
 public:
  static constexpr int kMaxRows = 8192;

  explicit ProductTimer(const DeviceInfo& device);

  // A large copy on the device, read plus written.
  double CopyGbps();

  // LinearRunner: what a step does.
  double TimeRunner(const ProductShape& shape, int rows, bool batch_invariant);
  // One streaming plan.
  double TimePlan(const ProductShape& shape, int rows, const cuda::SkinnyPlan& plan,
                  bool dependent);
  // One plan of the wgmma kernel, without the residual update before it.
  double TimePlan(const ProductShape& shape, int rows, const cuda::WidePlan& plan);
  // One plan of the kernel for some hundred rows, without the residual update; and what cuBLASLt
  // with the kernels behind it takes for the same.
  double TimePlan(const ProductShape& shape, int rows, const cuda::LargePlan& plan);
  double TimeLibrary(const ProductShape& shape, int rows);
  // cuBLASLt's product of bf16 weights alone, without what comes before and behind it. Negative: it
  // cannot run.
  double TimeAlgorithm(const ProductShape& shape, int rows, const cublasLtMatmulAlgo_t& algorithm,
                       int num_replays);
  // Its candidates, the heuristic's choice first.
  std::vector<cublasLtMatmulAlgo_t> Candidates(const ProductShape& shape, int rows, int count) {
    return gemm_.Candidates(shape.f32_output(), shape.out_dim, shape.in_dim, rows, count);
  }

  // The linear calls of a decoder layer, many layers in a chain, without attention between them.
  // By LinearRunner; or by the streaming kernel, where change(plan, in_dim) may alter its default
  // plan. Us per layer.
  using ChangePlan = std::function<void(cuda::SkinnyPlan&, int)>;
  double TimeLayerChain(const ModelPlan& plan, int rows, bool dependent, const ChangePlan& change);
  static double LayerChainBytes(const ModelPlan& plan);

  // A call on these buffers; weights at the pool's start.
  cuda::LinearCall MakeCall(const ProductShape& shape, int rows);

 private:
  // Some weights of the pool, 256-byte aligned, at about byte `position` of an endless stream.
  const void* Weights(int64_t position, int64_t num_bytes);

  cuda::LaunchContext Context(bool dependent) const {
    return {.stream = stream_.get(), .dependent = dependent, .device = &device_};
  }
  // Calls run(context, call) for a graph's launches, each with other weights.
  template <typename Run>
  double Time(const ProductShape& shape, int rows, bool dependent, int num_replays, const Run& run);

  const DeviceInfo device_;
  cuda::Stream stream_;
  cuda::LinearRunner runner_;
  cuda::LinearRunner invariant_runner_;
  cuda::GemmLt gemm_;
  DeviceArray<cuda::bf16> pool_, x_, x_scratch_, block_out_, multiplier_;
  DeviceArray<float> hidden_, hidden_out_, norm_;
  DeviceArray<std::byte> output_;
};

}  // namespace lapidary
