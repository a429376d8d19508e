// How the blocks of a resident step pass activations to each other.
//
// A vector is exchanged as packets of two bf16 values and the number of the exchange, 8 bytes that
// arrive together. A reader asks for the packets it needs until they carry that number: data and
// signal are one trip through L2, with no barrier over all blocks.
//
// A buffer is used once per layer. Its packets of layer l are read before those of layer l + 1 are
// written, because every block has a part in at least one exchange in between (the outputs of
// attention and MLP), and takes part in it only when it is done reading.
#pragma once

#include <cstdint>

#include "ops/cuda/launch.h"
#include "ops/cuda/resident/resident_tiles.h"

namespace lapidary::cuda {

inline constexpr int kResidentWarps = 8;  // that compute
inline constexpr int kResidentWorkers = kResidentWarps * 32;
// And two more: the producer, which loads weights and cached entries into the ring, one prepares
// phases.
inline constexpr int kResidentThreads = kResidentWorkers + 2 * 32;

// Phases that are prepared: this one and the next ones, in turns. As many as a layer has at least,
// so that one of them has attention.
inline constexpr int kPreparedPhases = 4;

// Polls until a kernel that cannot go on is ended with an error: many seconds.
inline constexpr uint32_t kMaxPolls = 1u << 26;

__device__ __forceinline__ BlockShare ShareOfBlock(int count) {
  return {static_cast<uint32_t>(count), blockIdx.x, gridDim.x};
}

// threadIdx.x, read anew: nothing that a phase derives from it is kept in registers through all
// other phases.
__device__ __forceinline__ int ThreadOfPhase() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// All computing warps of the block.
__device__ __forceinline__ void SyncWorkers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kResidentWorkers) : "memory");
}

// ask() until it returns that everything is there.
template <typename Ask>
__device__ __forceinline__ void AskUntilComplete(const Ask& ask) {
  uint32_t polls = 0;
  bool complete;
  do {
    complete = ask();
    if (++polls == kMaxPolls) __trap();
  } while (!complete);
}

__device__ __forceinline__ void SendPacket(uint64_t* packet, uint32_t pair, uint32_t number) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(packet), "r"(pair), "r"(number)
               : "memory");
}

// Two packets that are sent together.
__device__ __forceinline__ void SendPackets(uint64_t* packets, uint32_t first, uint32_t second,
                                            uint32_t number) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %2};" ::"l"(packets), "r"(first),
               "r"(number), "r"(second)
               : "memory");
}

// Where bf16 is not enough: four values in 16 bytes that arrive together. Each gives up the last
// eight bits, for a byte of the number: 16 bits of precision are left.
__device__ __forceinline__ void SendFloats(uint4* packet, float4 values, uint32_t number) {
  const auto tagged = [&](float value, uint32_t bytes) {
    return __byte_perm(__float_as_uint(value), number, bytes);
  };
  const uint64_t low = tagged(values.x, 0x3214) | uint64_t{tagged(values.y, 0x3215)} << 32;
  const uint64_t high = tagged(values.z, 0x3216) | uint64_t{tagged(values.w, 0x3217)} << 32;
  asm volatile(
      "{\n"
      "  .reg .b128 whole;\n"
      "  mov.b128 whole, {%1, %2};\n"
      "  st.relaxed.gpu.global.b128 [%0], whole;\n"
      "}" ::"l"(packet),
      "l"(low), "l"(high)
      : "memory");
}
__device__ __forceinline__ float AsSent(float value) {
  return __uint_as_float(__float_as_uint(value) & ~0xffu);
}
// Returns whether they carry the number.
__device__ __forceinline__ bool ReceiveFloats(const uint4* packet, uint32_t number,
                                              float4& values) {
  uint64_t low, high;
  asm volatile(
      "{\n"
      "  .reg .b128 whole;\n"
      "  ld.relaxed.gpu.global.b128 whole, [%2];\n"
      "  mov.b128 {%0, %1}, whole;\n"
      "}"
      : "=l"(low), "=l"(high)
      : "l"(packet)
      : "memory");
  const uint32_t x = static_cast<uint32_t>(low), y = static_cast<uint32_t>(low >> 32);
  const uint32_t z = static_cast<uint32_t>(high), w = static_cast<uint32_t>(high >> 32);
  values = {AsSent(__uint_as_float(x)), AsSent(__uint_as_float(y)), AsSent(__uint_as_float(z)),
            AsSent(__uint_as_float(w))};
  const uint32_t tag = __byte_perm(__byte_perm(x, y, 0x0040), __byte_perm(z, w, 0x0040), 0x5410);
  return tag == number;
}

// Two packets, which need not have arrived together.
__device__ __forceinline__ uint4 LoadPackets(const uint64_t* packets) {
  uint4 words;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(packets)
               : "memory");
  return words;
}

// Quads of values first, first + stride, ... (kCount of them at most, below num_quads), as bf16.
template <int kCount>
__device__ __forceinline__ void ReceiveQuads(const uint64_t* packets, int first, int stride,
                                             int num_quads, uint32_t number,
                                             uint2 (&quads)[kCount]) {
  AskUntilComplete([&] {
    bool complete = true;
#pragma unroll
    for (int idx = 0; idx < kCount; ++idx) {
      const int quad = first + idx * stride;
      if (quad < num_quads) {
        const uint4 words = LoadPackets(packets + 2 * quad);
        complete = complete && words.y == number && words.w == number;
        quads[idx] = make_uint2(words.x, words.z);
      }
    }
    return complete;
  });
}

}  // namespace lapidary::cuda
