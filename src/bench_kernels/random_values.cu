#include "bench_kernels/random_values.h"
#include "device/cuda_error.h"

namespace lapidary {
namespace {

__device__ float Uniform(uint64_t index) {
  uint64_t z = index * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<int64_t>(z >> 40) - (1 << 23)) / (1 << 23);
}

__device__ void Convert(float value, float& out) { out = value; }
__device__ void Convert(float value, __nv_bfloat16& out) { out = __float2bfloat16(value); }

template <typename T>
__global__ void FillKernel(T* values, int64_t size, float amplitude) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < size;
       i += gridDim.x * int64_t{256}) {
    Convert(Uniform(i) * amplitude, values[i]);
  }
}

template <typename T>
void Fill(cudaStream_t stream, T* values, int64_t size, float amplitude) {
  FillKernel<<<2048, 256, 0, stream>>>(values, size, amplitude);
  LAPIDARY_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void FillRandom(cudaStream_t stream, __nv_bfloat16* values, int64_t size, float amplitude) {
  Fill(stream, values, size, amplitude);
}
void FillRandom(cudaStream_t stream, float* values, int64_t size, float amplitude) {
  Fill(stream, values, size, amplitude);
}

}  // namespace lapidary
