// Matrix instructions on fragments that ldmatrix loads from shared memory, each with its layout.
// mma.cuh has the ones on operands that come straight from memory.
#pragma once

#include <cstdint>

#include "ops/cuda/ptx/mma.cuh"

namespace lapidary::cuda {

// Four 8x8 matrices of 16-bit values. Lane l gives the address of row l % 8 of matrix l / 8 and
// receives of each matrix the elements (l / 4, 2 (l % 4)) and the one to its right.
__device__ __forceinline__ void LoadMatrices(uint32_t (&m)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared)
               : "memory");
}

// The same of the transposed matrices.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&m)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared)
               : "memory");
}

// Stores four 8x8 matrices of 16-bit values transposed. Lane l gives the address of row l % 8 of
// stored matrix l / 8, and holds of each the elements (l / 4, 2 (l % 4)) and the one to its right
// of what is then transposed.
__device__ __forceinline__ void StoreMatricesTransposed(uint32_t shared, const uint32_t (&m)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
      "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
      : "memory");
}
// Two of them; lanes from 16 on give no address.
__device__ __forceinline__ void StoreMatricesTransposed(uint32_t shared, const uint32_t (&m)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared),
               "r"(m[0]), "r"(m[1])
               : "memory");
}

// An 8x8 matrix of 16-bit values, of which a lane has the elements (l / 4, 2 (l % 4)) and the one
// to its right, transposed: (l / 4, 2 (l % 4)) of the result.
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t m) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(m));
  return transposed;
}

// D [16, 8] += A [16, 16] B [16, 8], bf16 into f32. With g = lane / 4 and t = lane % 4:
//   a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with its right neighbour
//   b: (2t, g), (2t + 8, g), each with its lower neighbour
//   d: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
__device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// x, but the compiler does not know.
__device__ __forceinline__ int Opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// 2^x; 2^-inf is 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace lapidary::cuda
