// More forms of the matrix instruction of a warpgroup (wgmma.cuh): into sums that it need not read,
// with its first operand in registers, and of narrow operands.
#pragma once

#include <cstdint>

#include "ops/cuda/ptx/wgmma.cuh"

namespace lapidary::cuda {

// An operand of rows of 16 values (32 bytes) in the 32-byte swizzle, eight rows to 256 bytes: rows
// of k, or, transposed, of 16 columns of one k each. 16 values of k further on is then 32 more.
__device__ __forceinline__ uint64_t NarrowOperand(uint32_t shared_address) {
  constexpr uint64_t kSwizzle32 = uint64_t{3} << 62;
  constexpr uint64_t kRowGroup = uint64_t{8 * 32 / 16} << 32;
  return kSwizzle32 | kRowGroup | (uint64_t{1} << 16) | ((shared_address & 0x3ffff) >> 4);
}

// d[64 x kColumns] = A[64 x 16] B[16 x kColumns] (Set), or += (Add), both from shared memory.
template <int kColumns>
struct WgmmaOfShared;

// d += A B with B as rows of columns (TransposedOperand) and A from registers: thread (4 g + t) of
// warp w has in `a` rows 16 w + g and 16 w + g + 8 at k = 2 t, 2 t + 1, then both at k + 8.
template <int kColumns>
struct WgmmaOfRegisters;

#define LAPIDARY_EIGHT(a, b, c, d, e, f, g, h) \
  "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define LAPIDARY_REGISTERS_8 LAPIDARY_EIGHT(0, 1, 2, 3, 4, 5, 6, 7)
#define LAPIDARY_REGISTERS_16 LAPIDARY_REGISTERS_8 ", " LAPIDARY_EIGHT(8, 9, 10, 11, 12, 13, 14, 15)
#define LAPIDARY_REGISTERS_24 \
  LAPIDARY_REGISTERS_16 ", " LAPIDARY_EIGHT(16, 17, 18, 19, 20, 21, 22, 23)
#define LAPIDARY_REGISTERS_32 \
  LAPIDARY_REGISTERS_24 ", " LAPIDARY_EIGHT(24, 25, 26, 27, 28, 29, 30, 31)
#define LAPIDARY_REGISTERS_40 \
  LAPIDARY_REGISTERS_32 ", " LAPIDARY_EIGHT(32, 33, 34, 35, 36, 37, 38, 39)
#define LAPIDARY_SUMS_AT(i)                                                             \
  "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define LAPIDARY_SUMS_8 LAPIDARY_SUMS_AT(0)
#define LAPIDARY_SUMS_32 \
  LAPIDARY_SUMS_8, LAPIDARY_SUMS_AT(8), LAPIDARY_SUMS_AT(16), LAPIDARY_SUMS_AT(24)
#define LAPIDARY_SUMS_40 LAPIDARY_SUMS_32, LAPIDARY_SUMS_AT(32)

// name, whether d is read, columns, registers (half of them), the operands behind the registers
#define LAPIDARY_WGMMA_STEP(name, accumulates, columns, registers, a_index, b_index)          \
  static __device__ __forceinline__ void name(float(&d)[registers], uint64_t a, uint64_t b) { \
    asm volatile(                                                                             \
        "{\n"                                                                                 \
        "  .reg .pred accumulate;\n"                                                          \
        "  setp.ne.b32 accumulate, " #accumulates                                             \
        ", 0;\n"                                                                              \
        "  wgmma.mma_async.sync.aligned.m64n" #columns                                        \
        "k16.f32.bf16.bf16 {" LAPIDARY_REGISTERS_##registers "}, %" #a_index ", %" #b_index   \
                                                             ", accumulate, 1, 1, 0, 0;\n"    \
                                                             "}"                              \
        : LAPIDARY_SUMS_##registers                                                           \
        : "l"(a), "l"(b));                                                                    \
  }
#define LAPIDARY_WGMMA_OF_SHARED(columns, registers, a_index, b_index) \
  template <>                                                          \
  struct WgmmaOfShared<columns> {                                      \
    LAPIDARY_WGMMA_STEP(Set, 0, columns, registers, a_index, b_index)  \
    LAPIDARY_WGMMA_STEP(Add, 1, columns, registers, a_index, b_index)  \
  }
#define LAPIDARY_WGMMA_OF_REGISTERS(columns, registers, a0, a1, a2, a3, b_index)              \
  template <>                                                                                 \
  struct WgmmaOfRegisters<columns> {                                                          \
    static __device__ __forceinline__ void Add(float (&d)[registers], const uint32_t (&a)[4], \
                                               uint64_t b) {                                  \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns                               \
                   "k16.f32.bf16.bf16 {" LAPIDARY_REGISTERS_##registers                       \
                   "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_index ", 1, 1, 1, 1;"  \
                   : LAPIDARY_SUMS_##registers                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                     \
    }                                                                                         \
  }

LAPIDARY_WGMMA_OF_SHARED(80, 40, 40, 41);
LAPIDARY_WGMMA_OF_REGISTERS(16, 8, 8, 9, 10, 11, 12);
LAPIDARY_WGMMA_OF_REGISTERS(64, 32, 32, 33, 34, 35, 36);

#undef LAPIDARY_WGMMA_OF_REGISTERS
#undef LAPIDARY_WGMMA_OF_SHARED
#undef LAPIDARY_WGMMA_STEP
#undef LAPIDARY_SUMS_40
#undef LAPIDARY_SUMS_32
#undef LAPIDARY_SUMS_8
#undef LAPIDARY_SUMS_AT
#undef LAPIDARY_REGISTERS_40
#undef LAPIDARY_REGISTERS_32
#undef LAPIDARY_REGISTERS_24
#undef LAPIDARY_REGISTERS_16
#undef LAPIDARY_REGISTERS_8
#undef LAPIDARY_EIGHT

}  // namespace lapidary::cuda
