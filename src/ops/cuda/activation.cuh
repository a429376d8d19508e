// Gemma's pointwise functions.
#pragma once

namespace lapidary::cuda {

// The tanh approximation of gelu, as the model defines it; the error is that of f32 arithmetic.
__device__ __forceinline__ float GeluTanh(float x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  const float inner = kSqrt2OverPi * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanhf(inner));
}

// cap * tanh(x / cap); cap 0: x.
__device__ __forceinline__ float Softcap(float x, float cap) {
  return cap == 0.0f ? x : cap * tanhf(x / cap);
}

}  // namespace lapidary::cuda
