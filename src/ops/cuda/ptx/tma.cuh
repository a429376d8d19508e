// TMA, Hopper's bulk copies of boxes of a matrix into shared memory, and the mbarriers they use.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace lapidary::cuda {

// A box lies in shared memory as rows of 64 bf16 values (128 bytes). Of the 8 pieces of 16 bytes of
// a row, piece i lies at place i ^ (address / 128 % 8): the 128-byte swizzle.
constexpr int kSwizzledRowBytes = 128;
constexpr int kSwizzledRowValues = 64;

// A barrier that `arrivals` arrivals complete, some of which may expect bytes.
__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Initialised barriers become visible to TMA and to the cluster.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Arrivals and waits order shared memory within the block, as wgmma and TMA need it; a
// wider scope would be a fence of the whole device, a microsecond each.
__device__ __forceinline__ void ArriveAtBarrier(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void ArriveAtBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
// Later, when what this thread has asked CopyAsync for is there.
__device__ __forceinline__ void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// At a barrier of another block (AddressInBlock).
__device__ __forceinline__ void ArriveInBlock(uint32_t barrier_in_block) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier_in_block) : "memory");
}
__device__ __forceinline__ void AwaitBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      "  .reg .pred done;\n"
      "await_barrier_%=:\n"
      "  mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "  @!done bra await_barrier_%=;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether one would not wait.
__device__ __forceinline__ bool IsBarrierDone(uint32_t barrier, uint32_t parity) {
  int done;
  asm volatile(
      "{\n"
      "  .reg .pred done;\n"
      "  mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "  selp.b32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// A position in a ring of slots with barriers: they are taken in turn, the parity tells one turn
// from the next.
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance(int num_slots, int by = 1) {
    slot += by;
    if (slot >= num_slots) {
      slot -= num_slots;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void StepBack(int num_slots) {
    if (--slot < 0) {
      slot += num_slots;
      parity ^= 1;
    }
  }
};

// All threads of all blocks of a cluster; orders no memory but what barriers in it were set up.
__device__ __forceinline__ void TellCluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void AwaitCluster() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}

// Both, and with them all that was stored and all arrivals in other blocks.
__device__ __forceinline__ void SyncCluster() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// What this thread stored to shared memory is seen by copies that are started after a barrier.
__device__ __forceinline__ void PublishToCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Shared memory to another block's (or our own); its barrier counts the bytes, a multiple of 16.
__device__ __forceinline__ void CopyToBlock(uint32_t target_in_block, uint32_t source,
                                            uint32_t num_bytes, uint32_t barrier_in_block) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(target_in_block),
      "r"(source), "r"(num_bytes), "r"(barrier_in_block)
      : "memory");
}

// What the L2 cache should think of copied memory: its policies, as the hardware encodes them.
enum class BoxUse : uint64_t {
  kNormal = 0x1000000000000000,
  kOnce = 0x12f0000000000000,   // first to go
  kAgain = 0x14f0000000000000,  // last to go
};

// Memory to shared memory; the barrier counts the bytes, a multiple of 16.
__device__ __forceinline__ void CopyBytes(const void* from, uint32_t shared_address,
                                          uint32_t num_bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address),
      "l"(from), "r"(num_bytes), "r"(barrier)
      : "memory");
}

// The same for memory that is read once.
__device__ __forceinline__ void CopyBytesOnce(const void* from, uint32_t shared_address,
                                              uint32_t num_bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address),
      "l"(from), "r"(num_bytes), "r"(barrier), "l"(static_cast<uint64_t>(BoxUse::kOnce))
      : "memory");
}

// A box of a matrix whose first value is (row, column) to shared memory; what lies outside is zero.
// The barrier counts its bytes.
__device__ __forceinline__ void CopyBox(const CUtensorMap& map, int row, int column,
                                        uint32_t shared_address, uint32_t barrier, BoxUse use) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(static_cast<uint64_t>(use))
      : "memory");
}
// The same of a map of chunks (MakeChunkedMap): so many chunks of 64 columns from `chunk` on.
__device__ __forceinline__ void CopyChunks(const CUtensorMap& map, int row, int chunk,
                                           uint32_t shared_address, uint32_t barrier, BoxUse use) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address),
      "l"(&map), "r"(0), "r"(row), "r"(chunk), "r"(barrier), "l"(static_cast<uint64_t>(use))
      : "memory");
}
// The same of a map of experts (MakeExpertMap): weight rows of one expert from `block` of eight (of
// a gated one, eight of each half) on.
__device__ __forceinline__ void CopyExpertRows(const CUtensorMap& map, int expert, int block,
                                               int column, uint32_t shared_address,
                                               uint32_t barrier, BoxUse use) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %3, %4, %5}], [%6], %7;" ::"r"(shared_address),
      "l"(&map), "r"(column), "r"(0), "r"(block), "r"(expert), "r"(barrier),
      "l"(static_cast<uint64_t>(use))
      : "memory");
}
// The same to all blocks of the cluster that `blocks` has bits of: to the same place, and counted
// by the same barrier of each.
__device__ __forceinline__ void CopyExpertRowsToBlocks(const CUtensorMap& map, int expert,
                                                       int block, int column,
                                                       uint32_t shared_address, uint32_t barrier,
                                                       uint16_t blocks, BoxUse use) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %3, %4, %5}], [%6], %7, %8;" ::"r"(
          shared_address),
      "l"(&map), "r"(column), "r"(0), "r"(block), "r"(expert), "r"(barrier), "h"(blocks),
      "l"(static_cast<uint64_t>(use))
      : "memory");
}
__device__ __forceinline__ void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace lapidary::cuda
