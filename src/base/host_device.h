// LAPIDARY_HOST_DEVICE marks small inline functions that both the host and CUDA kernels call.
#pragma once

#ifdef __CUDACC__
#define LAPIDARY_HOST_DEVICE __host__ __device__
#else
#define LAPIDARY_HOST_DEVICE
#endif
