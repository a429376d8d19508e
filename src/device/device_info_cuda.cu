#include <cuda_runtime.h>

#include "device/cuda_error.h"
#include "device/device_info.h"
#include "device/device_scope.h"

namespace lapidary {
namespace {

// Stands for any kernel whose blocks need an SM each.
__global__ void ProbeKernel() {}

int ClusterBlocks(const DeviceInfo& device, int cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster);
  config.blockDim = dim3(128);
  config.dynamicSmemBytes = device.shared_bytes_per_block;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int num_clusters = 0;
  LAPIDARY_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&num_clusters, ProbeKernel, &config));
  return num_clusters * cluster;
}

}  // namespace

DeviceInfo DescribeDevice(int ordinal) {
  const cuda::DeviceScope scope(ordinal);
  cudaDeviceProp properties;
  LAPIDARY_CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
  DeviceInfo device;
  device.ordinal = ordinal;
  device.name = properties.name;
  device.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  device.compute_major = properties.major;
  device.compute_minor = properties.minor;
  device.num_sms = properties.multiProcessorCount;
  device.l2_bytes = properties.l2CacheSize;
  device.shared_bytes_per_sm = static_cast<int>(properties.sharedMemPerMultiprocessor);
  device.shared_bytes_per_block = static_cast<int>(properties.sharedMemPerBlockOptin);
  device.reserved_shared_bytes = static_cast<int>(properties.reservedSharedMemPerBlock);
  LAPIDARY_CUDA_CHECK(cudaFuncSetAttribute(ProbeKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           device.shared_bytes_per_block));
  device.cluster_blocks[1] = device.num_sms;
  for (int cluster = 2; cluster <= DeviceInfo::kMaxCluster; ++cluster) {
    device.cluster_blocks[cluster] = ClusterBlocks(device, cluster);
  }
  return device;
}

}  // namespace lapidary
