// What the CUDA runtime says about this machine, without a CUDA header: every build can ask.
//
// device_probe_cuda.cu answers in a build with LAPIDARY_CUDA, device_probe_none.cc in one without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lapidary {

struct GpuInfo {
  int ordinal = 0;  // what cudaSetDevice takes
  std::string name;
  int64_t memory_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
};

struct GpuList {
  std::vector<GpuInfo> gpus;
  std::string problem;  // why `gpus` is empty; one clause, empty when there are GPUs
};

// Whether this program was built with LAPIDARY_CUDA.
bool BuiltWithCuda();

// All GPUs that the driver shows. No driver, no device or a driver that is too old is an empty list
// with its problem, not a failure. Creates no context, so it costs no device memory.
GpuList ListGpus();

}  // namespace lapidary
