#include "ops/cuda/tensor_map.h"

#include <fmt/format.h>

#include "base/check.h"

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

}  // namespace

CUtensorMap MakeSwizzledMap(const bf16* matrix, int rows, int columns, int box_rows) {
  static const EncodeFunction encode = FindEncode();
  CHECK(columns % 8 == 0 && box_rows >= 1 && box_rows <= 256) << columns << ", " << box_rows;
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(columns) * sizeof(bf16)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<bf16*>(matrix), sizes, row_bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK_EQ(static_cast<int>(result), static_cast<int>(CUDA_SUCCESS))
      << "no tensor map for " << rows << " x " << columns;
  return map;
}

}  // namespace lapidary::cuda
