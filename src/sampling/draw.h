// The arithmetic of one draw, shared bit for bit by the scalar code, the vector code and the GPU.
//
// Token `id` of a row has weight w = exp((x - max) / temperature) and an exponential variate E that
// depends on (seed, position, id) alone. The token with the largest w / E is drawn. That is the
// exponential race, the linear form of Gumbel-max: token i wins with probability w_i / sum(w).
//
// Why not an inverse CDF: a running sum over 262,144 floats depends on its order, so another thread
// count could pick another token. A maximum has no order: the drawn token is a function of the row,
// the seed and the position, whatever machine and however many threads look for it; no sort and no
// normaliser are needed; and dropping a token that loses does not change the winner.
//
// Everything below uses IEEE add, multiply and divide in a fixed order, without FMA and without
// libm, so two devices that see the same row draw the same token. Coefficients are minimax fits
// (Chebyshev nodes, 40 digits, then rounded to float).
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "sampling/philox.h"

namespace lapidary {

namespace draw {

// Below this exponent a weight is zero: it could not win against weight 1 (E spans 2^-32 .. 22).
inline constexpr float kMinExponent = -80.0f;
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693359375f;  // 355/512: nine bits, so n * high is exact.
inline constexpr float kLn2Low = -2.12194440e-4f;
inline constexpr float kLn2 = 0.693147181f;
inline constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer.

// exp(r) = 1 + r + r^2 (e0 + e1 r + ...), |r| <= ln2/2, error 8e-9.
inline constexpr float kExp0 = 0.5f;
inline constexpr float kExp1 = 0.1666657699f;
inline constexpr float kExp2 = 0.04166655462f;
inline constexpr float kExp3 = 0.008363179053f;
inline constexpr float kExp4 = 0.001392618359f;

// log(1 + f) = f + f^2 (l0 + l1 f + ...), f in [sqrt(1/2) - 1, sqrt(2) - 1], error 5e-9.
inline constexpr float kLog0 = -0.4999999765f;
inline constexpr float kLog1 = 0.3333333003f;
inline constexpr float kLog2 = -0.2500078126f;
inline constexpr float kLog3 = 0.2000123451f;
inline constexpr float kLog4 = -0.1662664508f;
inline constexpr float kLog5 = 0.1420485417f;
inline constexpr float kLog6 = -0.1312755964f;
inline constexpr float kLog7 = 0.1272268888f;
inline constexpr float kLog8 = -0.07673651329f;
inline constexpr float kUniformScale = 4.656612873e-10f;  // 2^-31
inline constexpr int32_t kSqrtHalfBits = 0x3f3504f3;

// Fixed-point probability mass: weights as integers sum to the same value in any order.
// 2^36 per unit of weight; a vocabulary of 2^18 sums to at most 2^54.
inline constexpr float kMassScale = 68719476736.0f;
// exp of this is below one unit of mass.
inline constexpr float kMasslessExponent = -25.0f;

LAPIDARY_HOST_DEVICE inline float Mul(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);  // Never contracted into an FMA.
#else
  return a * b;
#endif
}

LAPIDARY_HOST_DEVICE inline float Add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

LAPIDARY_HOST_DEVICE inline float Div(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

LAPIDARY_HOST_DEVICE inline int32_t BitsOf(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_int(value);
#else
  return std::bit_cast<int32_t>(value);
#endif
}

LAPIDARY_HOST_DEVICE inline float FloatOf(int32_t bits) {
#ifdef __CUDA_ARCH__
  return __int_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// acc * x + c, rounded twice.
LAPIDARY_HOST_DEVICE inline float Step(float acc, float x, float c) { return Add(Mul(acc, x), c); }

}  // namespace draw

// exp((x - max) * inv_temperature) for x <= max; x may be -inf. Exactly 1 at x == max.
LAPIDARY_HOST_DEVICE inline float TokenWeight(float x, float max, float inv_temperature) {
  using namespace draw;
  const float d = Mul(Add(x, -max), inv_temperature);
  if (!(d >= kMinExponent)) return 0.0f;
  const float n = Add(Add(Mul(d, kLog2E), kRoundMagic), -kRoundMagic);
  const float r = Add(Add(d, -Mul(n, kLn2High)), -Mul(n, kLn2Low));
  const float p = Step(Step(Step(Step(kExp4, r, kExp3), r, kExp2), r, kExp1), r, kExp0);
  const float e = Add(Add(Mul(Mul(r, r), p), r), 1.0f);
  return FloatOf(BitsOf(e) + (static_cast<int32_t>(n) << 23));
}

LAPIDARY_HOST_DEVICE inline uint64_t TokenMass(float weight) {
  return static_cast<uint64_t>(draw::Mul(weight, draw::kMassScale));
}

// 32 random bits to an Exp(1) variate in [2^-32, 22.2], with float precision in both tails: E near
// zero decides how fairly unlikely tokens are drawn, so -log(1 - v) is taken with v itself.
LAPIDARY_HOST_DEVICE inline float ExponentialFromBits(uint32_t bits) {
  using namespace draw;
  const int32_t b = static_cast<int32_t>(bits >> 1);
  const float v = Mul(Add(static_cast<float>(b), 0.5f), kUniformScale);
  const float u = Mul(Add(static_cast<float>(0x7fffffff - b), 0.5f), kUniformScale);  // 1 - v
  const int32_t u_bits = BitsOf(u);
  const int32_t exponent = (u_bits - kSqrtHalfBits) >> 23;
  const float m = FloatOf(u_bits - (exponent << 23));  // In [sqrt(1/2), sqrt(2)).
  const float f = exponent == 0 ? -v : Add(m, -1.0f);
  float p = Step(kLog8, f, kLog7);
  p = Step(Step(Step(p, f, kLog6), f, kLog5), f, kLog4);
  p = Step(Step(Step(Step(p, f, kLog3), f, kLog2), f, kLog1), f, kLog0);
  const float log1p = Add(Mul(Mul(f, f), p), f);
  return -Add(log1p, Mul(static_cast<float>(exponent), kLn2));
}

// One Philox block serves four neighbouring ids: block id/4, word id%4.
LAPIDARY_HOST_DEVICE inline PhiloxCounter DrawCounter(uint32_t block, uint64_t position) {
  return {block, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0};
}

LAPIDARY_HOST_DEVICE inline PhiloxKey DrawKey(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

LAPIDARY_HOST_DEVICE inline float RaceScore(float weight, int32_t id, uint64_t seed,
                                            uint64_t position) {
  const PhiloxCounter block =
      Philox(DrawCounter(static_cast<uint32_t>(id) / 4, position), DrawKey(seed));
  const uint32_t word = id % 4 == 0   ? block.v0
                        : id % 4 == 1 ? block.v1
                        : id % 4 == 2 ? block.v2
                                      : block.v3;
  return draw::Div(weight, ExponentialFromBits(word));
}

// The kept tokens of a row as a point in the order (logit descending, id ascending): every filter
// that keeps "the best so many" is one such point, and ties are exact.
struct Cutoff {
  float logit = -__builtin_inff();
  int32_t id = 0x7fffffff;

  LAPIDARY_HOST_DEVICE bool Keeps(float x, int32_t token) const {
    return (x > logit) | ((x == logit) & (token <= id));  // No branch: x has no pattern.
  }
};

}  // namespace lapidary
