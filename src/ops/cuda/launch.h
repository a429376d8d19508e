// How kernels are launched: on one stream, optionally as programmatic dependents of each other.
//
// A dependent kernel may start while its predecessor still runs, so that its blocks are in place
// and its first weights are on their way when the predecessor's results arrive. The rules that make
// this safe, for every kernel of ours, dependent launch or not:
//   - AllowNextKernel() once by every block, near the start; later only where the next kernel's
//     blocks would take room from another stream's (RouteCall::leaves_room);
//   - WaitForPreviousKernel() in every thread before it reads anything a kernel wrote in this step
//     and before it writes anything; also where nothing is read, since "my predecessor is done"
//     must imply "all before it are done";
//   - what is read before the wait was in place before the step began: weights, the step's uploaded
//     arrays, cached KV pages; what is read after it is read by plain loads (no __ldg, no const
//     __restrict__: that path may hold stale lines). One exception: where the kernel before says
//     AllowNextKernel() only behind its own wait, what that one waited for may be read, past L1
//     (moe_product.cu);
//   - where streams fork or join, the next kernel is no dependent: it has another stream's work to
//     wait for.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <utility>

#include "base/check.h"
#include "device/cuda_error.h"
#include "device/device_info.h"

namespace lapidary::cuda {

using bf16 = __nv_bfloat16;

struct LaunchContext {
  cudaStream_t stream = nullptr;
  bool dependent = false;    // launch as a programmatic dependent of the kernel before
  bool synchronous = false;  // wait for every kernel, so that a fault names the one that caused it
  const DeviceInfo* device = nullptr;  // the stream's; must outlive this

  const DeviceInfo& Device() const {
    CHECK(device != nullptr) << "a launch that depends on its device without one";
    return *device;
  }
};

// CUDA wants to be asked, on every device, before a kernel may have much shared memory or large
// clusters. Launches ask; for queries of a kernel's occupancy it must be done before.
void PrepareKernel(const DeviceInfo& device, const void* kernel, int cluster, size_t shared_bytes);

// Waits for the stream; an error carries the kernel's name.
void WaitAndName(cudaStream_t stream, const void* kernel);

// Clusters are along x, of `cluster` blocks.
template <typename... Params, typename... Args>
void LaunchClusters(const LaunchContext& context, void (*kernel)(Params...), int cluster, dim3 grid,
                    dim3 block, size_t shared_bytes, Args&&... args) {
  const auto* const function = reinterpret_cast<const void*>(kernel);
  if (cluster > 1 || shared_bytes > 0) {
    PrepareKernel(context.Device(), function, cluster, shared_bytes);
  }
  cudaLaunchAttribute attributes[2]{};
  int num_attributes = 0;
  if (cluster > 1) {
    attributes[num_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[num_attributes].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    ++num_attributes;
  }
  if (context.dependent) {
    attributes[num_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[num_attributes].val.programmaticStreamSerializationAllowed = 1;
    ++num_attributes;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  LAPIDARY_CUDA_CHECK(
      cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...));
  if (context.synchronous) WaitAndName(context.stream, function);
}

template <typename... Params, typename... Args>
void Launch(const LaunchContext& context, void (*kernel)(Params...), dim3 grid, dim3 block,
            size_t shared_bytes, Args&&... args) {
  LaunchClusters(context, kernel, 1, grid, block, shared_bytes, std::forward<Args>(args)...);
}

#ifdef __CUDACC__
__device__ __forceinline__ void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void WaitForPreviousKernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
#endif

}  // namespace lapidary::cuda
