#include "ops/cpu/elementwise.h"

#include <cmath>

#include "base/check.h"
#include "ops/cpu/dequantise.h"
#include "tensor/panels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;

constexpr float kSqrtTwoOverPi = 0.7978845608028654f;
constexpr float kGeluCubic = 0.044715f;

// Applies `op` to whole vectors and, through a padded buffer, to the rest, so that every element
// sees the same vector code.
template <typename Op>
HWY_INLINE void Transform(const float* x, int64_t dim, float* y, const Op& op) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t idx = 0;
  for (; idx + lanes <= dim; idx += lanes) {
    hn::StoreU(op(d, hn::LoadU(d, x + idx), idx), d, y + idx);
  }
  if (idx == dim) return;
  HWY_ALIGN float padded[hn::MaxLanes(d)] = {};
  for (int64_t tail = idx; tail < dim; ++tail) padded[tail - idx] = x[tail];
  hn::Store(op(d, hn::Load(d, padded), idx), d, padded);
  for (int64_t tail = idx; tail < dim; ++tail) y[tail] = padded[tail - idx];
}

// Loads lanes [idx, idx + lanes) of a vector of length dim, zero beyond its end.
HWY_INLINE FloatVec LoadUpTo(Floats d, const float* x, int64_t idx, int64_t dim) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (idx + lanes <= dim) return hn::LoadU(d, x + idx);
  HWY_ALIGN float padded[hn::MaxLanes(d)] = {};
  for (int64_t tail = idx; tail < dim; ++tail) padded[tail - idx] = x[tail];
  return hn::Load(d, padded);
}

// Four chains to hide the latency of the additions.
float SumOfSquares(const float* x, int64_t dim) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  FloatVec acc[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t idx = 0;
  for (; idx + 4 * lanes <= dim; idx += 4 * lanes) {
    for (int chain = 0; chain < 4; ++chain) {
      const FloatVec v = hn::LoadU(d, x + idx + chain * lanes);
      acc[chain] = hn::MulAdd(v, v, acc[chain]);
    }
  }
  for (; idx < dim; idx += lanes) {
    const FloatVec v = LoadUpTo(d, x, idx, dim);
    acc[0] = hn::MulAdd(v, v, acc[0]);
  }
  const FloatVec sum = hn::Add(hn::Add(acc[0], acc[1]), hn::Add(acc[2], acc[3]));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

float InverseRms(const float* x, float eps, int64_t dim) {
  return 1.0f / std::sqrt(SumOfSquares(x, dim) / static_cast<float>(dim) + eps);
}

void RmsNormRow(const float* x, const float* w, float eps, int64_t dim, float* y) {
  const float inverse = InverseRms(x, eps, dim);
  Transform(x, dim, y, [&](Floats d, FloatVec v, int64_t idx) {
    const FloatVec normed = hn::Mul(v, hn::Set(d, inverse));
    return w == nullptr ? normed : hn::Mul(normed, LoadUpTo(d, w, idx, dim));
  });
}

void AddRmsNormRow(const float* x, const float* w, float eps, int64_t dim, float scale, float* h) {
  const float inverse = InverseRms(x, eps, dim);
  Transform(x, dim, h, [&](Floats d, FloatVec v, int64_t idx) {
    const FloatVec normed = hn::Mul(hn::Mul(v, hn::Set(d, inverse)), LoadUpTo(d, w, idx, dim));
    return hn::Mul(hn::Add(LoadUpTo(d, h, idx, dim), normed), hn::Set(d, scale));
  });
}

void ScaleRow(const float* x, float a, int64_t dim, float* y) {
  Transform(x, dim, y, [&](Floats d, FloatVec v, int64_t) { return hn::Mul(v, hn::Set(d, a)); });
}

void GeluMulRow(float* gate, const float* up, int64_t dim) {
  Transform(gate, dim, gate, [&](Floats d, FloatVec v, int64_t idx) {
    const FloatVec cube = hn::Mul(hn::Mul(v, v), v);
    const FloatVec inner =
        hn::Mul(hn::Set(d, kSqrtTwoOverPi), hn::MulAdd(hn::Set(d, kGeluCubic), cube, v));
    const FloatVec gelu =
        hn::Mul(hn::Mul(hn::Set(d, 0.5f), v), hn::Add(hn::Set(d, 1.0f), hn::Tanh(d, inner)));
    return hn::Mul(gelu, LoadUpTo(d, up, idx, dim));
  });
}

void SoftcapRow(float* x, float cap, int64_t dim) {
  const float inverse = 1.0f / cap;
  Transform(x, dim, x, [&](Floats d, FloatVec v, int64_t) {
    return hn::Mul(hn::Set(d, cap), hn::Tanh(d, hn::Mul(v, hn::Set(d, inverse))));
  });
}

float ExpMinusMaxRow(float* x, int64_t dim) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float max = x[0];
  int64_t idx = 0;
  if (dim >= lanes) {
    FloatVec max_vec = hn::LoadU(d, x);
    for (idx = lanes; idx + lanes <= dim; idx += lanes) {
      max_vec = hn::Max(max_vec, hn::LoadU(d, x + idx));
    }
    max = hn::GetLane(hn::MaxOfLanes(d, max_vec));
  }
  for (; idx < dim; ++idx) max = x[idx] > max ? x[idx] : max;

  FloatVec sum = hn::Zero(d);
  Transform(x, dim, x, [&](Floats dd, FloatVec v, int64_t at) {
    FloatVec e = hn::Exp(dd, hn::Sub(v, hn::Set(dd, max)));
    if (at + lanes > dim) {  // Padding lanes must not count.
      e = hn::IfThenElseZero(hn::FirstN(dd, static_cast<size_t>(dim - at)), e);
    }
    sum = hn::Add(sum, e);
    return e;
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void MulAddToRow(const float* x, float a, int64_t dim, float* acc) {
  Transform(x, dim, acc, [&](Floats d, FloatVec v, int64_t idx) {
    return hn::MulAdd(v, hn::Set(d, a), LoadUpTo(d, acc, idx, dim));
  });
}

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(AddRmsNormRow);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(GeluMulRow);
HWY_EXPORT(SoftcapRow);
HWY_EXPORT(ExpMinusMaxRow);
HWY_EXPORT(MulAddToRow);

void RmsNorm(const float* x, const float* w, float eps, int64_t dim, float* y) {
  HWY_DYNAMIC_DISPATCH(RmsNormRow)(x, w, eps, dim, y);
}
void AddRmsNorm(const float* x, const float* w, float eps, int64_t dim, float scale, float* h) {
  HWY_DYNAMIC_DISPATCH(AddRmsNormRow)(x, w, eps, dim, scale, h);
}
void Scale(const float* x, float a, int64_t dim, float* y) {
  HWY_DYNAMIC_DISPATCH(ScaleRow)(x, a, dim, y);
}
void GeluMul(float* gate, const float* up, int64_t dim) {
  HWY_DYNAMIC_DISPATCH(GeluMulRow)(gate, up, dim);
}
void Softcap(float* x, float cap, int64_t dim) { HWY_DYNAMIC_DISPATCH(SoftcapRow)(x, cap, dim); }
float ExpMinusMax(float* x, int64_t dim) { return HWY_DYNAMIC_DISPATCH(ExpMinusMaxRow)(x, dim); }
void MulAddTo(const float* x, float a, int64_t dim, float* acc) {
  HWY_DYNAMIC_DISPATCH(MulAddToRow)(x, a, dim, acc);
}

void GatherRow(const MatrixRef& table, int64_t row, float a, float* y) {
  const int64_t dim = table.cols;
  const DType dtype = table.format.unit;
  if (dtype == DType::kF32) {
    Scale(table.As<float>() + row * dim, a, dim, y);
    return;
  }
  if (!table.format.is_plain()) {
    if (IsPanelDType(dtype)) {
      UnpackPanelRow(table, row, y);
    } else {
      DequantiseRows(table, row, 1, y);
    }
    Scale(y, a, dim, y);
    return;
  }
  CHECK(dtype == DType::kBF16 || dtype == DType::kF16) << DTypeName(dtype);
  const uint16_t* bits = table.As<uint16_t>() + row * dim;
  for (int64_t idx = 0; idx < dim; ++idx) {
    y[idx] = a * (dtype == DType::kBF16 ? Bf16ToFloat(bits[idx]) : F16ToFloat(bits[idx]));
  }
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
