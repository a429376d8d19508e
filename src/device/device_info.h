// What the planners of kernels know of a GPU. Without a CUDA header: tests make cards of their own.
#pragma once

#include <array>
#include <cstdint>

#include "device/device_probe.h"

namespace lapidary {

struct DeviceInfo : GpuInfo {
  static constexpr int kMaxCluster = 8;  // blocks of a cluster on any card that has them

  int num_sms = 0;
  int64_t l2_bytes = 0;
  int shared_bytes_per_sm = 0;
  int shared_bytes_per_block = 0;  // the most that a block may have, static variables included
  int reserved_shared_bytes = 0;   // that each block takes of its SM beside what it asks for
  // By the size of a cluster, 1 to kMaxCluster: blocks that run at once where each needs an SM to
  // itself. Clusters do not spread over all of a card, so some SMs may be left over.
  std::array<int, kMaxCluster + 1> cluster_blocks = {};
};

// One of ListGpus(), with what only its context can tell: makes that, unlike ListGpus().
DeviceInfo DescribeDevice(int ordinal);

}  // namespace lapidary
