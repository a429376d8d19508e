// Linear layers at the models' shapes: our calls, the library's product alone, and the linear calls
// of whole decoder layers as one chain.
#pragma once

#include <string>
#include <vector>

#include "bench_kernels/kernel_timing.h"

namespace lapidary {

struct LinearBenchOptions {
  std::string only;       // names that contain this; empty: all
  bool variants = false;  // also other ways to stream, to see which is best
};

struct LinearBenchResult {
  std::vector<KernelRow> shapes;      // LinearRunner, with the library's product as the baseline
  std::vector<KernelRow> variants;    // other plans; the baseline is the default plan
  std::vector<KernelRow> algorithms;  // cuBLASLt's candidates; the baseline is its first
  std::vector<KernelRow> layers;      // us per decoder layer at one row
  double copy_gbps = 0;               // read plus written
};

LinearBenchResult BenchLinear(const LinearBenchOptions& options);

// Compact tables for a terminal.
std::string FormatLinearBench(const LinearBenchResult& result);

}  // namespace lapidary
