#include "device/device_info.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(DeviceInfoTest, DescribesWhatPlannersAsk) {
  const GpuList list = ListGpus();
  if (list.gpus.empty()) GTEST_SKIP() << "no GPU: " << list.problem;
  if (list.gpus[0].compute_major != 9) GTEST_SKIP() << list.gpus[0].name << " has no clusters";
  const DeviceInfo device = DescribeDevice(0);
  EXPECT_EQ(device.name, list.gpus[0].name);
  EXPECT_EQ(device.memory_bytes, list.gpus[0].memory_bytes);
  EXPECT_GT(device.num_sms, 0);
  EXPECT_GT(device.l2_bytes, 0);
  EXPECT_GT(device.reserved_shared_bytes, 0);
  EXPECT_LE(device.shared_bytes_per_block + device.reserved_shared_bytes,
            device.shared_bytes_per_sm);
  EXPECT_EQ(device.cluster_blocks[1], device.num_sms);
  for (int cluster = 2; cluster <= DeviceInfo::kMaxCluster; ++cluster) {
    EXPECT_GT(device.cluster_blocks[cluster], device.num_sms / 2) << cluster;
    EXPECT_LE(device.cluster_blocks[cluster], device.num_sms) << cluster;
    EXPECT_EQ(device.cluster_blocks[cluster] % cluster, 0) << cluster;
    RecordProperty("blocks_of_clusters_of_" + std::to_string(cluster),
                   device.cluster_blocks[cluster]);
  }
}

}  // namespace
}  // namespace lapidary
