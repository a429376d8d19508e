#include "ops/cuda/launch.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "device/device_scope.h"

namespace lapidary::cuda {
namespace {

// Clusters of up to so many blocks need no permission.
constexpr int kPortableCluster = DeviceInfo::kMaxCluster;

// What kernels may do so far, on each device. Permissions only grow: a graph that was captured
// before keeps what its launches need.
class Permissions {
 public:
  void Extend(int ordinal, const void* kernel, int cluster, size_t shared_bytes) {
    const std::lock_guard lock(mutex_);
    Permission& permission = permissions_[{ordinal, kernel}];
    if (shared_bytes <= permission.shared_bytes && cluster <= permission.cluster) return;
    const DeviceScope scope(ordinal);
    if (shared_bytes > permission.shared_bytes) {
      LAPIDARY_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(shared_bytes)));
      permission.shared_bytes = shared_bytes;
    }
    if (cluster > permission.cluster) {
      LAPIDARY_CUDA_CHECK(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
      permission.cluster = cluster;
    }
  }

 private:
  struct Permission {
    size_t shared_bytes = 0;
    int cluster = kPortableCluster;
  };
  std::mutex mutex_;
  std::map<std::pair<int, const void*>, Permission> permissions_;
};

}  // namespace

void PrepareKernel(const DeviceInfo& device, const void* kernel, int cluster, size_t shared_bytes) {
  static Permissions permissions;
  permissions.Extend(device.ordinal, kernel, cluster, shared_bytes);
}

void WaitAndName(cudaStream_t stream, const void* kernel) {
  const cudaError_t code = cudaStreamSynchronize(stream);
  if (code == cudaSuccess) return;
  const char* name = "unknown";
  cudaFuncGetName(&name, kernel);
  throw CudaError(code, fmt::format("kernel {} failed: {} ({})", name, cudaGetErrorString(code),
                                    cudaGetErrorName(code)));
}

}  // namespace lapidary::cuda
