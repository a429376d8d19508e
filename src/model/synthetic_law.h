// The law behind synthetic weights, in a form that host and device evaluate alike: integer
// arithmetic up to one float multiplication and one addition.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace lapidary {

// Either scale * bell (the sum of four 16-bit uniforms) or centre + scale * uniform.
struct SyntheticLaw {
  uint64_t key = 0;  // of (seed, tensor name)
  bool is_bell = false;
  float centre = 0.0f;
  float scale = 0.0f;
};

LAPIDARY_HOST_DEVICE inline uint64_t MixBits(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Element `index` of the tensor.
LAPIDARY_HOST_DEVICE inline float SyntheticValue(const SyntheticLaw& law, uint64_t index) {
  const uint64_t bits = MixBits(law.key + index * 0x9e3779b97f4a7c15u);
  if (law.is_bell) {
    const int32_t sum = static_cast<int32_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                             ((bits >> 32) & 0xffff) + (bits >> 48)) -
                        131070;
    return static_cast<float>(sum) * law.scale;
  }
  const int32_t centred = static_cast<int32_t>(bits & 0xffff) - 32768;
#ifdef __CUDA_ARCH__
  return __fadd_rn(law.centre, __fmul_rn(static_cast<float>(centred), law.scale));
#else
  return law.centre + static_cast<float>(centred) * law.scale;
#endif
}

}  // namespace lapidary
