// GPUs of several sizes, for tests of planners.
#pragma once

#include "device/device_info.h"

namespace lapidary {

// As one describes itself: how many SMs clusters leave over differs from card to card.
inline DeviceInfo TestH200() {
  DeviceInfo device;
  device.name = "NVIDIA H200";
  device.memory_bytes = int64_t{141} << 30;
  device.compute_major = 9;
  device.num_sms = 132;
  device.l2_bytes = int64_t{60} << 20;
  device.shared_bytes_per_sm = 228 * 1024;
  device.shared_bytes_per_block = 227 * 1024;
  device.reserved_shared_bytes = 1024;
  device.cluster_blocks = {0, 132, 132, 99, 120, 100, 96, 91, 96};
  return device;
}

inline DeviceInfo TestSmallerCard() {
  DeviceInfo device;
  device.name = "a smaller card";
  device.memory_bytes = int64_t{40} << 30;
  device.compute_major = 9;
  device.num_sms = 108;
  device.l2_bytes = int64_t{40} << 20;
  device.shared_bytes_per_sm = 164 * 1024;
  device.shared_bytes_per_block = 163 * 1024;
  device.reserved_shared_bytes = 1024;
  device.cluster_blocks = {0, 108, 108, 81, 96, 80, 72, 70, 72};
  return device;
}

}  // namespace lapidary
