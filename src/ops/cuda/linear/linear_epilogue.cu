#include <algorithm>

#include "base/check.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/linear/linear_epilogue.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 16;  // at most

// kWidth values that are loaded and stored as one word of 16 or 2 bytes.
template <int kWidth>
struct Pack {
  alignas(kWidth * sizeof(bf16)) bf16 values[kWidth];
};

template <int kWidth>
__device__ __forceinline__ Pack<kWidth> LoadPack(const bf16* address) {
  Pack<kWidth> pack;
  if constexpr (kWidth == 8) {
    *reinterpret_cast<uint4*>(&pack) = __ldcg(reinterpret_cast<const uint4*>(address));
  } else {
    static_assert(kWidth == 1);
    *reinterpret_cast<uint16_t*>(&pack) = __ldcg(reinterpret_cast<const uint16_t*>(address));
  }
  return pack;
}

// y = gelu(left) * right, row by row; left may be y itself. `packs` per row.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    GeluProductKernel(const bf16* left, int64_t left_stride, const bf16* right,
                      int64_t right_stride, int64_t num_packs, int packs, bf16* y) {
  AllowNextKernel();
  WaitForPreviousKernel();
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < num_packs;
       i += gridDim.x * int64_t{kThreads}) {
    const int64_t row = i / packs;
    const int64_t column = (i - row * packs) * kWidth;
    const Pack<kWidth> a = LoadPack<kWidth>(left + row * left_stride + column);
    const Pack<kWidth> b = LoadPack<kWidth>(right + row * right_stride + column);
    Pack<kWidth> out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      out.values[j] = __float2bfloat16_rn(GeluTanh(__bfloat162float(a.values[j])) *
                                          __bfloat162float(b.values[j]));
    }
    *reinterpret_cast<Pack<kWidth>*>(y + i * kWidth) = out;
  }
}

// y is aligned to 16 bytes. Four values a load; logits are many times the cache and come once.
__global__ void __launch_bounds__(kThreads) SoftcapKernel(float cap, int64_t num_values, float* y) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  auto* const vectors = reinterpret_cast<float4*>(y);
#pragma unroll 4
  for (int64_t i = first; i < num_values / 4; i += gridDim.x * int64_t{kThreads}) {
    float4 values = __ldcs(vectors + i);
    values.x = Softcap(values.x, cap);
    values.y = Softcap(values.y, cap);
    values.z = Softcap(values.z, cap);
    values.w = Softcap(values.w, cap);
    vectors[i] = values;
  }
  if (first < num_values % 4) {
    float& last = y[num_values - 1 - first];
    last = Softcap(last, cap);
  }
}

dim3 GridFor(const LaunchContext& context, int64_t num_items) {
  const int64_t max_blocks = int64_t{kBlocksPerSm} * context.Device().num_sms;
  return dim3(static_cast<unsigned>(
      std::clamp<int64_t>((num_items + kThreads - 1) / kThreads, 1, max_blocks)));
}

bool Aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

void RunGeluProduct(const LaunchContext& context, const bf16* left, int64_t left_stride,
                    const bf16* right, int64_t right_stride, int rows, int width, bf16* y) {
  const bool wide = width % 8 == 0 && left_stride % 8 == 0 && right_stride % 8 == 0 &&
                    Aligned(left) && Aligned(right) && Aligned(y);
  const int packs = wide ? width / 8 : width;
  const int64_t num_packs = static_cast<int64_t>(rows) * packs;
  Launch(context, wide ? GeluProductKernel<8> : GeluProductKernel<1>, GridFor(context, num_packs),
         dim3(kThreads), 0, left, left_stride, right, right_stride, num_packs, packs, y);
}

}  // namespace

void RunGatedGelu(const LaunchContext& context, const bf16* product, int rows, int width, bf16* y) {
  RunGeluProduct(context, product, 2 * int64_t{width}, product + width, 2 * int64_t{width}, rows,
                 width, y);
}

void RunGeluMul(const LaunchContext& context, const bf16* multiplier, int64_t stride, int rows,
                int width, bf16* y) {
  RunGeluProduct(context, y, width, multiplier, stride, rows, width, y);
}

void RunSoftcap(const LaunchContext& context, float cap, int64_t num_values, float* y) {
  CHECK(Aligned(y));
  Launch(context, SoftcapKernel, GridFor(context, (num_values + 3) / 4), dim3(kThreads), 0, cap,
         num_values, y);
}

}  // namespace lapidary::cuda
