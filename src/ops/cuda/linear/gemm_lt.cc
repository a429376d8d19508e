#include "ops/cuda/linear/gemm_lt.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstring>
#include <memory>

#include "base/check.h"

#define LAPIDARY_CUBLAS_CHECK(call)                                                           \
  do {                                                                                        \
    if (const cublasStatus_t status_ = (call); status_ != CUBLAS_STATUS_SUCCESS) [[unlikely]] \
      ThrowCublasError(status_, #call, __LINE__);                                             \
  } while (false)

namespace lapidary::cuda {
namespace {

[[noreturn]] void ThrowCublasError(cublasStatus_t status, const char* call, int line) {
  throw CudaError(cudaErrorUnknown, fmt::format("{}:{}: {} failed: {}", __FILE__, line, call,
                                                cublasLtGetStatusString(status)));
}

struct LayoutDeleter {
  void operator()(cublasLtMatrixLayout_t layout) const {
    (void)cublasLtMatrixLayoutDestroy(layout);
  }
};
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LayoutDeleter>;

// A row-major [rows, columns] matrix is cuBLAS's column-major [columns, rows]. `batch` of them.
Layout MakeLayout(cudaDataType type, int rows, int columns, int batch) {
  cublasLtMatrixLayout_t layout = nullptr;
  LAPIDARY_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type, columns, rows, columns));
  Layout owner(layout);
  if (batch > 1) {
    const int32_t count = batch;
    const int64_t distance = int64_t{rows} * columns;
    LAPIDARY_CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(
        layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    LAPIDARY_CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(
        layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance, sizeof(distance)));
  }
  return owner;
}

// The three matrices of a product.
struct Layouts {
  Layout weight;
  Layout x;
  Layout y;

  Layouts(bool f32_output, int out_dim, int in_dim, int rows, int batch)
      : weight(MakeLayout(CUDA_R_16BF, out_dim, in_dim, batch)),
        x(MakeLayout(CUDA_R_16BF, rows, in_dim, batch)),
        y(MakeLayout(f32_output ? CUDA_R_32F : CUDA_R_16BF, rows, out_dim, batch)) {}
};

bool TableIsUsable() {
  const size_t version = cublasLtGetVersion();
  if (version == GemmTableVersion()) {
    spdlog::info("cuBLASLt {}: {} algorithms from the table", version, GemmTable().size());
    return true;
  }
  spdlog::info(
      "cuBLASLt {}: its heuristic chooses algorithms, for the measured ones are of version {}",
      version, GemmTableVersion());
  return false;
}

}  // namespace

GemmLt::GemmLt(int row_step) : row_step_(row_step) {
  LAPIDARY_CUBLAS_CHECK(cublasLtCreate(&handle_));
  LAPIDARY_CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  LAPIDARY_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                       &transpose, sizeof(transpose)));
  workspace_ = DeviceBuffer(kWorkspaceBytes, "matrix products");
  uses_table_ = TableIsUsable();
}

GemmLt::~GemmLt() {
  (void)cublasLtMatmulDescDestroy(operation_);
  (void)cublasLtDestroy(handle_);
}

std::vector<cublasLtMatmulAlgo_t> GemmLt::Search(const Key& key, int rows, int max_candidates) {
  const auto& [out_dim, in_dim, bucket, f32_output, aligned, batch] = key;
  const Layouts layouts(f32_output, out_dim, in_dim, rows, batch);
  cublasLtMatmulPreference_t preference = nullptr;
  LAPIDARY_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                        decltype([](cublasLtMatmulPreference_t p) {
                          (void)cublasLtMatmulPreferenceDestroy(p);
                        })>
      owner(preference);
  const size_t workspace_bytes = GemmLt::kWorkspaceBytes;
  LAPIDARY_CUBLAS_CHECK(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &workspace_bytes, sizeof(workspace_bytes)));
  const uint32_t input_alignment = 16;
  const uint32_t output_alignment = aligned ? 16 : (f32_output ? 4 : 2);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES}) {
    LAPIDARY_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        preference, attribute, &input_alignment, sizeof(input_alignment)));
  }
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    LAPIDARY_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        preference, attribute, &output_alignment, sizeof(output_alignment)));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(max_candidates);
  int num_results = 0;
  LAPIDARY_CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(
      handle_, operation_, layouts.weight.get(), layouts.x.get(), layouts.y.get(), layouts.y.get(),
      preference, max_candidates, results.data(), &num_results));
  CHECK_GE(num_results, 1) << "cuBLASLt knows no algorithm for " << rows << " x " << in_dim << " x "
                           << out_dim;
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < num_results; ++i) algorithms.push_back(results[i].algo);
  return algorithms;
}

std::optional<cublasLtMatmulAlgo_t> GemmLt::FromTable(const GemmShape& shape) {
  const GemmAlgorithm* entry = uses_table_ ? FindGemmAlgorithm(shape) : nullptr;
  if (entry == nullptr) return std::nullopt;
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm) == sizeof(entry->words));
  std::memcpy(&algorithm, entry->words.data(), sizeof(algorithm));
  const Layouts layouts(shape.f32_output, shape.out_dim, shape.in_dim, shape.rows, /*batch=*/1);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, operation_, layouts.weight.get(), layouts.x.get(),
                              layouts.y.get(), layouts.y.get(), &algorithm, &result);
  if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes) return algorithm;
  spdlog::warn("cuBLASLt refuses the table's algorithm for {} rows, {} inputs, {} outputs ({})",
               shape.rows, shape.in_dim, shape.out_dim, cublasLtGetStatusString(status));
  return std::nullopt;
}

cublasLtMatmulAlgo_t GemmLt::Choose(const Key& key, int rows) {
  const auto& [out_dim, in_dim, bucket, f32_output, aligned, batch] = key;
  if (aligned && batch == 1) {  // as the table's were measured
    const auto measured = FromTable({out_dim, in_dim, bucket, f32_output});
    if (measured) return *measured;
  }
  spdlog::debug("cuBLASLt's heuristic chooses for {} rows, {} inputs, {} outputs", rows, in_dim,
                out_dim);
  return Search(key, rows, 1).front();
}

std::vector<cublasLtMatmulAlgo_t> GemmLt::Candidates(bool f32_output, int out_dim, int in_dim,
                                                     int rows, int max_candidates) {
  return Search({out_dim, in_dim, GemmRowBucket(rows), f32_output, true, 1}, rows, max_candidates);
}

bool GemmLt::RunWith(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, const bf16* weight,
                     const bf16* x, void* y, bool f32_output, int out_dim, int in_dim, int rows,
                     int batch) {
  const Layouts layouts(f32_output, out_dim, in_dim, rows, batch);
  const float one = 1.0f;
  const float zero = 0.0f;
  return cublasLtMatmul(handle_, operation_, &one, weight, layouts.weight.get(), x, layouts.x.get(),
                        &zero, y, layouts.y.get(), y, layouts.y.get(), &algorithm,
                        workspace_.As<void>(), kWorkspaceBytes, stream) == CUBLAS_STATUS_SUCCESS;
}

const cublasLtMatmulAlgo_t& GemmLt::Find(const Key& key, int rows) {
  auto found = algorithms_.find(key);
  if (found == algorithms_.end()) found = algorithms_.emplace(key, Choose(key, rows)).first;
  return found->second;
}

void GemmLt::Run(cudaStream_t stream, const bf16* weight, const bf16* x, void* y, bool f32_output,
                 int out_dim, int in_dim, int rows, int batch) {
  const bool aligned = reinterpret_cast<uintptr_t>(y) % 16 == 0;
  const auto run_for = [&](int bucket, int searched_rows) {
    const Key key{out_dim, in_dim, bucket, f32_output, aligned, batch};
    return RunWith(Find(key, searched_rows), stream, weight, x, y, f32_output, out_dim, in_dim,
                   rows, batch);
  };
  const int bucket =
      row_step_ == 0 ? GemmRowBucket(rows) : (rows + row_step_ - 1) / row_step_ * row_step_;
  if (run_for(bucket, bucket)) return;
  // What suits the bucket's upper end need not suit every row count in it. Exact entries are told
  // apart from buckets by their sign.
  if (run_for(-rows, rows)) return;
  throw CudaError(cudaErrorUnknown, fmt::format("cuBLASLt failed at {} rows, {} inputs, {} outputs",
                                                rows, in_dim, out_dim));
}

void GemmLt::Load(const bf16* weight, bool f32_output, int out_dim, int in_dim, int fewest_rows,
                  int most_rows) {
  // A capture loads what it will launch and touches no operand.
  const Stream stream;
  const auto* x = workspace_.As<bf16>();
  LAPIDARY_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed));
  for (int rows = GemmRowBucket(fewest_rows); rows <= GemmRowBucket(most_rows);
       rows = GemmRowBucket(rows + 1)) {
    const Key key{out_dim, in_dim, rows, f32_output, /*aligned=*/true, /*batch=*/1};
    if (algorithms_.contains(key)) continue;
    RunWith(Find(key, rows), stream.get(), weight, x, workspace_.As<void>(), f32_output, out_dim,
            in_dim, rows);
  }
  cudaGraph_t graph = nullptr;
  LAPIDARY_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  cudaGraphDestroy(graph);
}

}  // namespace lapidary::cuda
