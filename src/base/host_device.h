// Marks for small functions that both the host and CUDA kernels call.
#pragma once

// LAPIDARY_HOST_DEVICE goes before `inline` or `constexpr`; LAPIDARY_HOST_DEVICE_INLINE says inline
// itself, and that a kernel must not call it as a function.
#ifdef __CUDACC__
#define LAPIDARY_HOST_DEVICE __host__ __device__
#define LAPIDARY_HOST_DEVICE_INLINE __host__ __device__ __forceinline__
#else
#define LAPIDARY_HOST_DEVICE
#define LAPIDARY_HOST_DEVICE_INLINE inline
#endif
