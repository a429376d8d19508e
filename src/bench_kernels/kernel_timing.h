// Timing of CUDA kernels: graph replays over rotating inputs, medians of several.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

namespace lapidary {

// What a memory-bound kernel cannot beat, measured on an H200 by a large copy.
constexpr double kFloorBytesPerSecond = 4.2e12;

// One measurement. `baseline_us` is 0 where there is nothing to compare with.
struct KernelRow {
  std::string name;     // "e2b gate_up"
  std::string shape;    // "1536x12288"
  std::string variant;  // what differs from the default; empty for the default
  int rows = 0;
  double us = 0;
  double gbps = 0;
  double tflops = 0;
  double floor_share = 0;  // 1: as fast as the bytes can be read
  double baseline_us = 0;
};

// Captures launch(0) .. launch(num_launches - 1) into a graph and returns the median time of a
// replay divided by the number of launches, in microseconds.
double TimeGraphUs(cudaStream_t stream, int num_launches, const std::function<void(int)>& launch,
                   int num_replays = 9);

// A row for a product of [rows, in_dim] and [in_dim, out_dim] that took `us`.
KernelRow MakeLinearRow(std::string name, std::string variant, int rows, int in_dim, int out_dim,
                        double us);

std::string ToJson(const std::vector<KernelRow>& rows);

}  // namespace lapidary
