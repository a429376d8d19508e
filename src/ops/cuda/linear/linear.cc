#include "ops/cuda/linear/linear.h"

#include <algorithm>

#include "base/check.h"
#include "base/result.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/dequantise.h"
#include "ops/cuda/linear/gemm_lt.h"
#include "ops/cuda/linear/linear_epilogue.h"
#include "ops/cuda/linear/linear_large.h"
#include "ops/cuda/linear/linear_scratch.h"
#include "ops/cuda/linear/linear_skinny.h"
#include "ops/cuda/linear/linear_wide.h"
#include "ops/cuda/tile_type.h"
#include "tensor/weight_tiles.h"

namespace lapidary::cuda {
namespace {

bool Aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

void CheckCall(const LinearCall& call, int max_rows) {
  CHECK_OK(LinearSupports(call.weight));
  CHECK(call.rows >= 1 && call.rows <= max_rows) << call.rows << " rows, at most " << max_rows;
  CHECK(call.weight.data != nullptr && call.y != nullptr);
  CHECK(call.x != nullptr || call.residual != nullptr);
  CHECK(Aligned(call.weight.data) && Aligned(call.x) && Aligned(call.y));
  CHECK(call.epilogue != Epilogue::kGatedGelu || call.out_dim() % 2 == 0) << call.out_dim();
  CHECK(call.epilogue != Epilogue::kGeluMul || call.multiplier != nullptr);
  if (call.residual != nullptr) {
    CHECK(Aligned(call.residual->hidden) && Aligned(call.residual->block_out) &&
          Aligned(call.residual->post_norm) && Aligned(call.residual->hidden_out) &&
          Aligned(call.residual->pre_norm));
    CHECK(call.residual->hidden != nullptr && call.residual->hidden != call.residual->hidden_out);
    CHECK(call.residual->block_out == nullptr || call.residual->post_norm != nullptr);
  }
}

}  // namespace

Status LinearSupports(const MatrixRef& weight) {
  const std::optional<TileType> type = FindTileType(weight.format);
  if (!type)
    return MakeError("a matrix in {}, for which there is no kernel", FormatName(weight.format));
  if (IsTiled(*type)) {
    if (weight.rows % kTileRows == 0 && weight.cols % kTileCols == 0) return {};
    return MakeError("a matrix of {} x {} in tiles of {} x {}", weight.rows, weight.cols, kTileRows,
                     kTileCols);
  }
  if (weight.rows < 1 || weight.cols < 1 || weight.cols % 8 != 0) {
    return MakeError("a matrix of {} x {}, not of rows of a multiple of 8", weight.rows,
                     weight.cols);
  }
  return {};
}

Status ResidualUpdateSupports(int dim) {
  if (dim < 1 || dim % 8 != 0 || dim > kMaxResidualDim) {
    return MakeError("a hidden size of {} is no multiple of 8 up to {}", dim, kMaxResidualDim);
  }
  return {};
}

struct LinearRunner::Impl {
  explicit Impl(const LinearOptions& linear_options) : options(linear_options) {
    if (!options.batch_invariant) {
      gemm = std::make_unique<GemmLt>();
      scratch = DeviceBuffer(GatedProductBytes(options.max_rows), "matrix products");
    }
    if (options.dequantised_bytes > 0) {
      dequantised = DeviceBuffer(options.dequantised_bytes, "weights in bf16");
    }
  }

  void RunGemm(const LaunchContext& context, const LinearCall& call);
  void RunBf16(const LaunchContext& context, const LinearCall& call);
  void RunTiled(const LaunchContext& context, const LinearCall& call);
  MatrixRef Dequantised(const LaunchContext& context, const MatrixRef& weight);

  LinearOptions options;
  std::unique_ptr<GemmLt> gemm;
  DeviceBuffer scratch;
  DeviceBuffer dequantised;
};

MatrixRef LinearRunner::Impl::Dequantised(const LaunchContext& context, const MatrixRef& weight) {
  const int64_t num_bytes = int64_t{weight.rows} * weight.cols * sizeof(bf16);
  CHECK_LE(num_bytes, dequantised.num_bytes()) << "a weight that has no room in bf16";
  RunDequantise(context, weight, dequantised.As<bf16>());
  return Bf16Matrix(dequantised.As<bf16>(), weight.rows, weight.cols);
}

void LinearRunner::Impl::RunGemm(const LaunchContext& context, const LinearCall& call) {
  if (call.residual != nullptr) {
    CHECK(call.x != nullptr) << "the residual update of " << call.rows << " rows needs scratch";
    RunResidualUpdate(context, *call.residual, call.rows, call.in_dim(), call.x);
  }
  const bool f32_output = call.epilogue == Epilogue::kSoftcap;
  if (call.epilogue != Epilogue::kGatedGelu) {
    gemm->Run(context.stream, Bf16Values(call.weight), call.x, call.y, f32_output, call.out_dim(),
              call.in_dim(), call.rows);
    if (call.epilogue == Epilogue::kGeluMul) {
      RunGeluMul(context, call.multiplier, call.multiplier_stride, call.rows, call.out_dim(),
                 static_cast<bf16*>(call.y));
    } else if (f32_output && call.softcap != 0.0f) {
      RunSoftcap(context, call.softcap, static_cast<int64_t>(call.rows) * call.out_dim(),
                 static_cast<float*>(call.y));
    }
    return;
  }
  const int width = call.out_dim() / 2;
  bf16* const product = scratch.As<bf16>();
  const int part = GatedPartRows(call.rows, call.out_dim(), scratch.num_bytes());
  CHECK_GE(part, 1) << "out_dim " << call.out_dim();
  for (int begin = 0; begin < call.rows; begin += part) {
    const int rows = std::min(part, call.rows - begin);
    gemm->Run(context.stream, Bf16Values(call.weight), call.x + int64_t{begin} * call.in_dim(),
              product, false, call.out_dim(), call.in_dim(), rows);
    RunGatedGelu(context, product, rows, width,
                 static_cast<bf16*>(call.y) + int64_t{begin} * width);
  }
}

LinearRunner::LinearRunner(const LinearOptions& options) : impl_(std::make_unique<Impl>(options)) {}

LinearRunner::~LinearRunner() = default;

void LinearRunner::Load(const MatrixRef& weight, Epilogue epilogue, int most_rows) {
  if (impl_->gemm == nullptr || most_rows < kFewestGemmRows) return;
  const void* values = weight.data;
  if (IsTiled(weight)) {
    if (epilogue == Epilogue::kSoftcap) return;
    values = impl_->dequantised.As<bf16>();
  }
  impl_->gemm->Load(static_cast<const bf16*>(values), epilogue == Epilogue::kSoftcap, weight.rows,
                    weight.cols, kFewestGemmRows, most_rows);
}

void LinearRunner::Run(const LaunchContext& context, const LinearCall& call) {
  CheckCall(call, impl_->options.max_rows);
  if (IsTiled(call.weight)) {
    impl_->RunTiled(context, call);
  } else {
    impl_->RunBf16(context, call);
  }
}

void LinearRunner::Impl::RunBf16(const LaunchContext& context, const LinearCall& call) {
  const DeviceInfo& device = context.Device();
  if (options.batch_invariant) {
    RunWide(context, call, PlanInvariant(device, call));
    return;
  }
  const SkinnyPlan plan = PlanSkinny(call);
  if (SkinnyFits(device, call, plan)) {
    RunSkinny(context, call, plan);
  } else if (WideIsWorthwhile(device, call)) {
    RunWide(context, call, PlanWide(device, call));
  } else if (LargeIsWorthwhile(device, call)) {
    RunLarge(context, call, PlanLarge(device, call).plan);
  } else {
    RunGemm(context, call);
  }
}

void LinearRunner::Impl::RunTiled(const LaunchContext& context, const LinearCall& call) {
  const DeviceInfo& device = context.Device();
  // The head is larger than the scratch that other weights are dequantised in.
  const bool is_head = call.epilogue == Epilogue::kSoftcap;
  if (!options.batch_invariant && SkinnyFits(device, call, PlanSkinny(call))) {
    RunSkinny(context, call, PlanSkinny(call));
  } else if (call.rows <= kMaxTiledRows || is_head) {
    RunWide(context, call,
            options.batch_invariant ? PlanInvariant(device, call) : PlanWide(device, call));
  } else {
    LinearCall in_bf16 = call;
    in_bf16.weight = Dequantised(context, call.weight);
    // A dependent product would read weights while they are made.
    LaunchContext after = context;
    after.dependent = false;
    RunBf16(after, in_bf16);
  }
}

void LinearRunner::RunByLibrary(const LaunchContext& context, const LinearCall& call) {
  CheckCall(call, impl_->options.max_rows);
  CHECK(impl_->gemm != nullptr);
  impl_->RunGemm(context, call);
}

}  // namespace lapidary::cuda
