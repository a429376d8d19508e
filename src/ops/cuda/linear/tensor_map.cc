#include "ops/cuda/linear/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/linear/narrow_map.h"

namespace lapidary::cuda {
namespace {

using EncodeFunction = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                    const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// From the driver that is there, so that nothing links against it.
EncodeFunction FindEncode() {
  constexpr const char* kName = "cuTensorMapEncodeTiled";
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  LAPIDARY_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(kName, &function, 12000, cudaEnableDefault, &found));
#else
  LAPIDARY_CUDA_CHECK(cudaGetDriverEntryPoint(kName, &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw CudaError(
        cudaErrorNotSupported,
        fmt::format("the driver has no {}: install a driver for CUDA 12 or newer", kName));
  }
  return reinterpret_cast<EncodeFunction>(function);
}

// Dims from the innermost one on, of boxes of 64 values (or of 16, with a narrower swizzle);
// strides in bytes, from the second dim on.
template <int kDims>
CUtensorMap Encode(const void* matrix, const cuuint64_t (&sizes)[kDims],
                   const cuuint64_t (&strides)[kDims - 1], const cuuint32_t (&box)[kDims],
                   CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                   CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) {
  static const EncodeFunction encode = FindEncode();
  CUtensorMap map;
  cuuint32_t steps[kDims];
  std::fill(steps, steps + kDims, 1);
  const CUresult result =
      encode(&map, type, kDims, const_cast<void*>(matrix), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK_EQ(static_cast<int>(result), static_cast<int>(CUDA_SUCCESS))
      << "no tensor map for " << sizes[0] << " x " << sizes[1];
  return map;
}

}  // namespace

CUtensorMap MakeSwizzledMap(const bf16* matrix, int rows, int columns, int box_rows) {
  CHECK(columns % 8 == 0 && box_rows >= 1 && box_rows <= 256) << columns << ", " << box_rows;
  return Encode<2>(matrix, {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   {static_cast<cuuint64_t>(columns) * sizeof(bf16)},
                   {64, static_cast<cuuint32_t>(box_rows)});
}

CUtensorMap MakeNarrowMap(const bf16* matrix, int rows, int box_rows) {
  CHECK(box_rows >= 1 && box_rows <= 256) << box_rows;
  constexpr int kColumns = 16;
  return Encode<2>(matrix, {kColumns, static_cast<cuuint64_t>(rows)}, {kColumns * sizeof(bf16)},
                   {kColumns, static_cast<cuuint32_t>(box_rows)}, CU_TENSOR_MAP_SWIZZLE_32B);
}

CUtensorMap MakeChunkedMap(const bf16* matrix, int rows, int columns, int box_rows,
                           int box_chunks) {
  CHECK(columns % 64 == 0 && box_rows >= 1 && box_rows <= 256 && box_chunks >= 1 &&
        box_chunks <= 256)
      << columns << ", " << box_rows << ", " << box_chunks;
  constexpr int kChunkBytes = 64 * sizeof(bf16);
  return Encode<3>(matrix,
                   {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns / 64)},
                   {static_cast<cuuint64_t>(columns) * sizeof(bf16), kChunkBytes},
                   {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_chunks)});
}

CUtensorMap MakeStripeMap(const void* tiles, int num_stripes, int stripe_bytes, int box_stripes,
                          int box_bytes) {
  constexpr int kWordBytes = 8;
  CHECK(stripe_bytes % 16 == 0 && box_bytes % 16 == 0 && box_bytes <= 256 * kWordBytes &&
        box_stripes >= 1 && box_stripes <= 256)
      << stripe_bytes << ", " << box_bytes << ", " << box_stripes;
  return Encode<2>(
      tiles,
      {static_cast<cuuint64_t>(stripe_bytes / kWordBytes), static_cast<cuuint64_t>(num_stripes)},
      {static_cast<cuuint64_t>(stripe_bytes)},
      {static_cast<cuuint32_t>(box_bytes / kWordBytes), static_cast<cuuint32_t>(box_stripes)},
      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_DATA_TYPE_UINT64);
}

CUtensorMap MakeExpertMap(const bf16* matrices, int experts, int halves, int rows, int columns) {
  CHECK(columns % 8 == 0 && rows % 8 == 0 && (halves == 1 || halves == 2))
      << columns << ", " << rows;
  constexpr int kBoxRows = 128;
  const auto row_bytes = static_cast<cuuint64_t>(columns) * sizeof(bf16);
  const cuuint64_t half_bytes = row_bytes * rows;
  return Encode<5>(
      matrices,
      {static_cast<cuuint64_t>(columns), 8, static_cast<cuuint64_t>(halves),
       static_cast<cuuint64_t>(rows / 8), static_cast<cuuint64_t>(experts)},
      {row_bytes, half_bytes, 8 * row_bytes, halves * half_bytes},
      {64, 8, static_cast<cuuint32_t>(halves), static_cast<cuuint32_t>(kBoxRows / 8 / halves), 1});
}

}  // namespace lapidary::cuda
