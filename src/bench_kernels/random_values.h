// Random inputs made on the device: zeros would run faster than real data.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lapidary {

// Uniform in (-amplitude, amplitude).
void FillRandom(cudaStream_t stream, __nv_bfloat16* values, int64_t size, float amplitude);
void FillRandom(cudaStream_t stream, float* values, int64_t size, float amplitude);

}  // namespace lapidary
