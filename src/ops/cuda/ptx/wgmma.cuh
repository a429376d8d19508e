// Hopper's matrix instruction of a warpgroup.
//
// Both operands lie in shared memory as rows of 64 bf16 values of k (128 bytes) in the copy
// engine's 128-byte swizzle: groups of eight rows are 1,024 bytes, aligned to them.
#pragma once

#include <cstdint>

#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/tma.cuh"

namespace lapidary::cuda {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;  // of an instruction's result

// Where an operand lies: address and distance of row groups in units of 16 bytes, 128-byte swizzle.
// 16 values of k further on is 2 more.
__device__ __forceinline__ uint64_t SwizzledOperand(uint32_t shared_address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kRowGroup = uint64_t{8 * kSwizzledRowBytes / 16} << 32;
  return kSwizzle128 | kRowGroup | (uint64_t{1} << 16) | ((shared_address & 0x3ffff) >> 4);
}

// An operand whose rows of 128 bytes are 64 columns of one k each: runs of 64 columns lie
// `run_bytes` apart, groups of eight k 1,024 bytes. 16 values of k further on is 128 more.
__device__ __forceinline__ uint64_t TransposedOperand(uint32_t shared_address, int run_bytes) {
  return SwizzledOperand(shared_address) - (uint64_t{1} << 16) +
         (static_cast<uint64_t>(run_bytes / 16) << 16);
}

// d[64 x kColumns] += A[64 x 16] B[16 x kColumns], asynchronously. Thread (warp w, lane 4 g + t)
// of the warpgroup holds in d[4 j + 0..3] rows 16 w + g (twice) and 16 w + g + 8 (twice), columns
// 8 j + 2 t and 8 j + 2 t + 1.
template <int kColumns>
struct Wgmma;

#define LAPIDARY_REGISTERS_4 "%0, %1, %2, %3"
#define LAPIDARY_REGISTERS_8 LAPIDARY_REGISTERS_4 ", %4, %5, %6, %7"
#define LAPIDARY_REGISTERS_12 LAPIDARY_REGISTERS_8 ", %8, %9, %10, %11"
#define LAPIDARY_REGISTERS_20 LAPIDARY_REGISTERS_16 ", %16, %17, %18, %19"
#define LAPIDARY_REGISTERS_28 LAPIDARY_REGISTERS_24 ", %24, %25, %26, %27"
#define LAPIDARY_REGISTERS_16 LAPIDARY_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LAPIDARY_REGISTERS_24 LAPIDARY_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LAPIDARY_REGISTERS_32 LAPIDARY_REGISTERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LAPIDARY_REGISTERS_40 LAPIDARY_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define LAPIDARY_REGISTERS_48 LAPIDARY_REGISTERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define LAPIDARY_REGISTERS_56 LAPIDARY_REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define LAPIDARY_REGISTERS_64 LAPIDARY_REGISTERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define LAPIDARY_REGISTERS_72 LAPIDARY_REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define LAPIDARY_REGISTERS_80 LAPIDARY_REGISTERS_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define LAPIDARY_REGISTERS_88 LAPIDARY_REGISTERS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define LAPIDARY_REGISTERS_96 LAPIDARY_REGISTERS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define LAPIDARY_REGISTERS_104 LAPIDARY_REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define LAPIDARY_FOUR_SUMS(i) "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define LAPIDARY_SUMS_AT(i) LAPIDARY_FOUR_SUMS(i), LAPIDARY_FOUR_SUMS((i) + 4)
#define LAPIDARY_SUMS_4 LAPIDARY_FOUR_SUMS(0)
#define LAPIDARY_SUMS_12 LAPIDARY_SUMS_8, LAPIDARY_FOUR_SUMS(8)
#define LAPIDARY_SUMS_20 LAPIDARY_SUMS_16, LAPIDARY_FOUR_SUMS(16)
#define LAPIDARY_SUMS_28 LAPIDARY_SUMS_24, LAPIDARY_FOUR_SUMS(24)
#define LAPIDARY_SUMS_8 LAPIDARY_SUMS_AT(0)
#define LAPIDARY_SUMS_16 LAPIDARY_SUMS_8, LAPIDARY_SUMS_AT(8)
#define LAPIDARY_SUMS_24 LAPIDARY_SUMS_16, LAPIDARY_SUMS_AT(16)
#define LAPIDARY_SUMS_32 LAPIDARY_SUMS_24, LAPIDARY_SUMS_AT(24)
#define LAPIDARY_SUMS_40 LAPIDARY_SUMS_32, LAPIDARY_SUMS_AT(32)
#define LAPIDARY_SUMS_48 LAPIDARY_SUMS_40, LAPIDARY_SUMS_AT(40)
#define LAPIDARY_SUMS_56 LAPIDARY_SUMS_48, LAPIDARY_SUMS_AT(48)
#define LAPIDARY_SUMS_64 LAPIDARY_SUMS_56, LAPIDARY_SUMS_AT(56)
#define LAPIDARY_SUMS_72 LAPIDARY_SUMS_64, LAPIDARY_SUMS_AT(64)
#define LAPIDARY_SUMS_80 LAPIDARY_SUMS_72, LAPIDARY_SUMS_AT(72)
#define LAPIDARY_SUMS_88 LAPIDARY_SUMS_80, LAPIDARY_SUMS_AT(80)
#define LAPIDARY_SUMS_96 LAPIDARY_SUMS_88, LAPIDARY_SUMS_AT(88)
#define LAPIDARY_SUMS_104 LAPIDARY_SUMS_96, LAPIDARY_SUMS_AT(96)

// columns, registers (half of them), then the operands behind the registers
#define LAPIDARY_WGMMA(columns, registers, a_index, b_index, scale_index)                       \
  template <>                                                                                   \
  struct Wgmma<columns> {                                                                       \
    static __device__ __forceinline__ void Run(float (&d)[registers], uint64_t a, uint64_t b) { \
      asm volatile(                                                                             \
          "{\n"                                                                                 \
          "  .reg .pred accumulate;\n"                                                          \
          "  setp.ne.b32 accumulate, %" #scale_index                                            \
          ", 0;\n"                                                                              \
          "  wgmma.mma_async.sync.aligned.m64n" #columns                                        \
          "k16.f32.bf16.bf16 "                                                                  \
          "{" LAPIDARY_REGISTERS_##registers "}, %" #a_index ", %" #b_index                     \
                                             ", accumulate, 1, 1, 0, 0;\n"                      \
                                             "}"                                                \
          : LAPIDARY_SUMS_##registers                                                           \
          : "l"(a), "l"(b), "n"(1));                                                            \
    }                                                                                           \
  }

LAPIDARY_WGMMA(8, 4, 4, 5, 6);
LAPIDARY_WGMMA(16, 8, 8, 9, 10);
LAPIDARY_WGMMA(24, 12, 12, 13, 14);
LAPIDARY_WGMMA(40, 20, 20, 21, 22);
LAPIDARY_WGMMA(56, 28, 28, 29, 30);
LAPIDARY_WGMMA(32, 16, 16, 17, 18);
LAPIDARY_WGMMA(48, 24, 24, 25, 26);
LAPIDARY_WGMMA(64, 32, 32, 33, 34);
LAPIDARY_WGMMA(80, 40, 40, 41, 42);
LAPIDARY_WGMMA(96, 48, 48, 49, 50);
LAPIDARY_WGMMA(112, 56, 56, 57, 58);
LAPIDARY_WGMMA(128, 64, 64, 65, 66);
LAPIDARY_WGMMA(144, 72, 72, 73, 74);
LAPIDARY_WGMMA(160, 80, 80, 81, 82);
LAPIDARY_WGMMA(176, 88, 88, 89, 90);
LAPIDARY_WGMMA(192, 96, 96, 97, 98);
LAPIDARY_WGMMA(208, 104, 104, 105, 106);

#undef LAPIDARY_WGMMA

// The same with A [64 x 16] from registers: thread (4 g + t) of warp w has in `a` rows 16 w + g and
// 16 w + g + 8 at k = 2 t, 2 t + 1, then both at k + 8.
template <int kColumns>
struct WgmmaOfWeights;

#define LAPIDARY_WGMMA_OF_WEIGHTS(columns, registers, a0, a1, a2, a3, b_index)                \
  template <>                                                                                 \
  struct WgmmaOfWeights<columns> {                                                            \
    static __device__ __forceinline__ void Run(float (&d)[registers], const uint32_t (&a)[4], \
                                               uint64_t b) {                                  \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns                               \
                   "k16.f32.bf16.bf16 {" LAPIDARY_REGISTERS_##registers                       \
                   "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_index ", 1, 1, 1, 0;"  \
                   : LAPIDARY_SUMS_##registers                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                     \
    }                                                                                         \
  }

LAPIDARY_WGMMA_OF_WEIGHTS(16, 8, 8, 9, 10, 11, 12);
LAPIDARY_WGMMA_OF_WEIGHTS(32, 16, 16, 17, 18, 19, 20);
LAPIDARY_WGMMA_OF_WEIGHTS(48, 24, 24, 25, 26, 27, 28);
LAPIDARY_WGMMA_OF_WEIGHTS(64, 32, 32, 33, 34, 35, 36);
LAPIDARY_WGMMA_OF_WEIGHTS(96, 48, 48, 49, 50, 51, 52);
LAPIDARY_WGMMA_OF_WEIGHTS(128, 64, 64, 65, 66, 67, 68);

#undef LAPIDARY_WGMMA_OF_WEIGHTS

// The same with A [64 x 16] from registers and B [16 x 128] as rows of columns: 16 rows of k, each
// of two runs of 64 columns. Thread (4 g + t) of warp w has in `a` rows 16 w + g and 16 w + g + 8
// at k = 2 t, 2 t + 1, then both at k + 8.
__device__ __forceinline__ void WgmmaOfRegisters128(float (&d)[64], const uint32_t (&a)[4],
                                                    uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LAPIDARY_REGISTERS_64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : LAPIDARY_SUMS_64
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Both from shared memory, B as above.
__device__ __forceinline__ void WgmmaTransposed128(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LAPIDARY_REGISTERS_64
               "}, %64, %65, 1, 1, 1, 0, 1;"
               : LAPIDARY_SUMS_64
               : "l"(a), "l"(b));
}

#undef LAPIDARY_SUMS_8
#undef LAPIDARY_SUMS_28
#undef LAPIDARY_SUMS_20
#undef LAPIDARY_SUMS_12
#undef LAPIDARY_SUMS_4
#undef LAPIDARY_SUMS_16
#undef LAPIDARY_SUMS_24
#undef LAPIDARY_SUMS_32
#undef LAPIDARY_SUMS_40
#undef LAPIDARY_SUMS_48
#undef LAPIDARY_SUMS_56
#undef LAPIDARY_SUMS_64
#undef LAPIDARY_SUMS_72
#undef LAPIDARY_SUMS_80
#undef LAPIDARY_SUMS_88
#undef LAPIDARY_SUMS_96
#undef LAPIDARY_SUMS_104
#undef LAPIDARY_SUMS_AT
#undef LAPIDARY_FOUR_SUMS
#undef LAPIDARY_REGISTERS_8
#undef LAPIDARY_REGISTERS_28
#undef LAPIDARY_REGISTERS_20
#undef LAPIDARY_REGISTERS_12
#undef LAPIDARY_REGISTERS_4
#undef LAPIDARY_REGISTERS_16
#undef LAPIDARY_REGISTERS_24
#undef LAPIDARY_REGISTERS_32
#undef LAPIDARY_REGISTERS_40
#undef LAPIDARY_REGISTERS_48
#undef LAPIDARY_REGISTERS_56
#undef LAPIDARY_REGISTERS_64
#undef LAPIDARY_REGISTERS_72
#undef LAPIDARY_REGISTERS_80
#undef LAPIDARY_REGISTERS_88
#undef LAPIDARY_REGISTERS_96
#undef LAPIDARY_REGISTERS_104

// Before the first instruction that uses registers which plain code wrote.
__device__ __forceinline__ void WgmmaBegin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Registers that instructions under way still write or read are not to be touched, nor moved,
// before this: the compiler knows by these.
template <int kCount>
__device__ __forceinline__ void WgmmaKeep(float (&d)[kCount]) {
#pragma unroll
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");
}
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

}  // namespace lapidary::cuda
