#include "ops/cuda/active_clusters.h"

namespace lapidary::cuda {

int MaxActiveClusters(const DeviceInfo& device, const void* kernel, int cluster, int num_threads,
                      size_t shared_bytes) {
  PrepareKernel(device, kernel, cluster, shared_bytes);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int num_clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&num_clusters, kernel, &config) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return num_clusters;
}

}  // namespace lapidary::cuda
