// Tensor core and memory instructions that CUDA C++ has no function for.
//
// The trick all matrix kernels here share: a dot product does not care about the order of k, so a
// lane's operands for two consecutive m16n8k16 instructions are taken as 16 consecutive bytes. In a
// chunk of 32 values of k, lane (g = lane / 4, t = lane % 4) holds values 8 t .. 8 t + 7 of its
// row; words 0 and 1 feed the first instruction, words 2 and 3 the second.
#pragma once

#include <cstdint>

namespace lapidary::cuda {

// acc[16 x 8] += A[16 x 32] B[32 x 8] for a chunk: `low` is row g of A, `high` row g + 8, `b` row g
// of B transposed. acc: (row g, columns 2 t, 2 t + 1), (row g + 8, the same columns).
__device__ __forceinline__ void MmaChunk(float (&acc)[4], const uint4& low, const uint4& high,
                                         const uint4& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(b.x), "r"(b.y));
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(low.z), "r"(high.z), "r"(low.w), "r"(high.w), "r"(b.z), "r"(b.w));
}

// The barrier at which blocks of a cluster learn that all have started.
__device__ __forceinline__ void ArriveAtCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void WaitForCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// 16 bytes of a weight that are used once: past L1, whole lines into L2. Zeros unless `valid`.
// Volatile, so that it stays before a WaitForPreviousKernel() that it is written before.
__device__ __forceinline__ uint4 LoadWeight(const void* address, bool valid) {
  uint4 value;
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  setp.ne.b32 p, %5, 0;\n"
      "  mov.b32 %0, 0;\n  mov.b32 %1, 0;\n  mov.b32 %2, 0;\n  mov.b32 %3, 0;\n"
      "  @p ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(address), "r"(static_cast<int>(valid)));
  return value;
}

// The same of 16, 8 or 4 bytes; unless `valid`, `value` stays as it is.
__device__ __forceinline__ void LoadIfValid(uint4& value, const void* address, bool valid) {
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  setp.ne.b32 p, %5, 0;\n"
      "  @p ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
      : "l"(address), "r"(static_cast<int>(valid)));
}
__device__ __forceinline__ void LoadIfValid(uint2& value, const void* address, bool valid) {
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  setp.ne.b32 p, %3, 0;\n"
      "  @p ld.global.nc.L1::no_allocate.L2::128B.v2.b32 {%0, %1}, [%2];\n"
      "}"
      : "+r"(value.x), "+r"(value.y)
      : "l"(address), "r"(static_cast<int>(valid)));
}
__device__ __forceinline__ void LoadIfValid(uint32_t& value, const void* address, bool valid) {
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  setp.ne.b32 p, %2, 0;\n"
      "  @p ld.global.nc.L1::no_allocate.L2::128B.b32 %0, [%1];\n"
      "}"
      : "+r"(value)
      : "l"(address), "r"(static_cast<int>(valid)));
}

__device__ __forceinline__ uint4 LoadShared(uint32_t shared_address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(shared_address)
               : "memory");
  return value;
}

__device__ __forceinline__ uint2 LoadShared8(uint32_t shared_address) {
  uint2 value;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(shared_address)
               : "memory");
  return value;
}
__device__ __forceinline__ uint32_t LoadShared4(uint32_t shared_address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(shared_address) : "memory");
  return value;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory through L2, without waiting; not `valid`: zeros, and
// nothing is read.
__device__ __forceinline__ void CopyAsync(uint32_t shared_address, const void* global,
                                          bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CopyAsync(void* shared, const void* global, bool valid = true) {
  CopyAsync(SharedAddress(shared), global, valid);
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kPending` of this thread's committed groups are under way.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// The shared-memory address of block `rank` of the cluster that corresponds to ours.
__device__ __forceinline__ uint32_t AddressInBlock(uint32_t shared_address, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
  return address;
}
// What lies there.
__device__ __forceinline__ float LoadFromBlock(uint32_t address_in_block) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address_in_block) : "memory");
  return value;
}

// Barriers of one arrival (InitBarrier of tma.cuh) that expects bytes: they are counted as
// they arrive, from this block or another of the cluster, together with the data.
// Makes initialised barriers visible to the cluster before it is told that we have started.
__device__ __forceinline__ void PublishByteBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void ExpectBytes(uint32_t barrier, uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(num_bytes)
               : "memory");
}
__device__ __forceinline__ void WaitForBytes(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      "  .reg .pred done;\n"
      "wait_for_bytes_%=:\n"
      "  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "  @!done bra wait_for_bytes_%=;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// To another block's shared memory (or our own), counted by a barrier beside them.
__device__ __forceinline__ void SendToBlock(uint32_t address, uint32_t barrier, uint2 words) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
          "r"(address),
      "r"(words.x), "r"(words.y), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void SendToBlock(uint32_t address, uint32_t barrier, float2 values) {
  SendToBlock(address, barrier, make_uint2(__float_as_uint(values.x), __float_as_uint(values.y)));
}
__device__ __forceinline__ void SendToBlock(uint32_t address, uint32_t barrier, uint4 words) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(barrier)
      : "memory");
}

}  // namespace lapidary::cuda
