// Gemma's pointwise functions.
#pragma once

namespace lapidary::cuda {

// The tanh approximation of gelu, as the model defines it: x (1 + tanh(u)) / 2 = x / (1 + e^-2u).
// The error is that of f32 arithmetic; far below zero the quotient stays exact where 1 + tanh does
// not.
__device__ __forceinline__ float GeluTanh(float x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  const float inner = kSqrt2OverPi * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.0f + __expf(-2.0f * inner));
}

// Within a few units in the last place: near zero a polynomial, as 1 - 2 / (e^2x + 1) cancels
// there.
__device__ __forceinline__ float FastTanh(float x) {
  const float square = x * x;
  const float near_zero =
      x * (1.0f + square * (-1.0f / 3 + square * (2.0f / 15 - square * (17.0f / 315))));
  const float beyond = 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * fabsf(x)));
  return fabsf(x) < 0.25f ? near_zero : copysignf(beyond, x);
}

// cap * tanh(x / cap); cap 0: x.
__device__ __forceinline__ float Softcap(float x, float cap) {
  return cap == 0.0f ? x : cap * FastTanh(__fdividef(x, cap));
}

}  // namespace lapidary::cuda
