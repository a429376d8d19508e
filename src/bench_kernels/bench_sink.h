// What every benchmark of kernels is given: the GPU, which rows are wanted, and where they go.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench_kernels/kernel_row.h"
#include "device/device_info.h"

namespace lapidary {

struct BenchSink {
  DeviceInfo device;
  std::function<bool(const KernelRow&)> wants;  // by its label: nothing is measured yet
  std::function<void(KernelRow)> add;
  std::vector<int> rows;  // of products and small kernels
  bool variants = false;

  // Measures and adds the row if it is wanted.
  template <typename Measure>
  void Time(KernelRow row, const Measure& measure) const {
    if (!wants(row)) return;
    row.us = measure();
    add(std::move(row));
  }
};

}  // namespace lapidary
