// y = x W^T with what Gemma puts before and behind it, for any number of rows.
//
// Up to some hundred rows go through our own kernels, more through cuBLASLt; callers see one
// operation. bf16 in and out, sums in f32; weights in bf16 or tiled (tensor/weight_tiles.h).
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "ops/cuda/launch.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

// The residual stream and what the last block wants added to it:
//   h_out = (h + rmsnorm(block_out) * post_norm) * scale
//   x     = rmsnorm(h_out) * pre_norm,  or h_out itself without pre_norm
// Sums in f32; x is rounded to bf16.
struct ResidualUpdate {
  const float* hidden = nullptr;     // [rows, dim]
  const bf16* block_out = nullptr;   // [rows, dim]; null: nothing to add, h_out = h * scale
  const float* post_norm = nullptr;  // [dim]
  float scale = 1.0f;
  float* hidden_out = nullptr;      // [rows, dim], another buffer than `hidden`; null: not kept
  const float* pre_norm = nullptr;  // [dim]
  float eps = 1e-6f;
};

enum class Epilogue {
  kStore,      // y [rows, out_dim] = x W^T
  kGatedGelu,  // W = [gate; up], each [out_dim / 2, in_dim]: y [rows, out_dim / 2] = gelu(gate) *
               // up
  kGeluMul,    // y = gelu(x W^T) * multiplier
  kSoftcap,    // y f32 = cap * tanh(x W^T / cap); cap 0: y = x W^T
};

struct LinearCall {
  MatrixRef weight;  // [out_dim, in_dim]
  int rows = 0;
  // The input: x, or the residual stream after an update. With `residual`, x is scratch
  // [rows, in_dim] that an implementation may use to hold the normed rows.
  bf16* x = nullptr;
  const ResidualUpdate* residual = nullptr;
  Epilogue epilogue = Epilogue::kStore;
  void* y = nullptr;                 // bf16; f32 for kSoftcap
  const bf16* multiplier = nullptr;  // kGeluMul: [rows, out_dim] with a row stride
  int64_t multiplier_stride = 0;
  float softcap = 0.0f;

  int out_dim() const { return weight.rows; }
  int in_dim() const { return weight.cols; }
};

// Up to so many rows weights stream through registers, in blocks that stay for the whole call.
constexpr int kMaxStreamedRows = 8;

struct LinearOptions {
  // A row's result depends on that row alone, not on how many come with it.
  bool batch_invariant = false;
  int max_rows = 8192;  // of a call; sizes the scratch
  // Scratch for a tiled weight in bf16, where a call has more rows than kernels for tiles take: of
  // the largest one but the head, whose tiles are multiplied as they are for any number of rows.
  // 0: no such calls.
  int64_t dequantised_bytes = 0;
};

// Of a weight, wherever it lies.
Status LinearSupports(const MatrixRef& weight);

class LinearRunner {
 public:
  // Allocates its workspace on the current device; nothing after that.
  explicit LinearRunner(const LinearOptions& options);
  ~LinearRunner();
  LinearRunner(const LinearRunner&) = delete;
  LinearRunner& operator=(const LinearRunner&) = delete;

  // Has everything loaded that calls with this weight and up to so many rows will launch.
  void Load(const MatrixRef& weight, Epilogue epilogue, int most_rows);

  // Safe to capture into a graph. Pointers are 16-byte aligned.
  void Run(const LaunchContext& context, const LinearCall& call);

  // The same through cuBLASLt whatever the number of rows, for benchmarks. Not batch-invariant.
  void RunByLibrary(const LaunchContext& context, const LinearCall& call);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

inline constexpr int kMaxResidualDim = 12288;
Status ResidualUpdateSupports(int dim);
// The update by itself: writes h_out and, unless null, x [rows, dim]. One block per row.
void RunResidualUpdate(const LaunchContext& context, const ResidualUpdate& update, int rows,
                       int dim, bf16* x);

}  // namespace lapidary::cuda
