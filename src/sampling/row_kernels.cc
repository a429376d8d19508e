#include "sampling/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling/row_kernels_portable.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sampling/row_kernels.cc"
// clang-format off: foreach_target.h has to come before highway.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

RowScan ScanRowImpl(std::span<const float> row, std::span<float> block_max) {
  return portable::ScanRow(row, block_max);
}

uint64_t RowMassImpl(std::span<const float> row, float max, float inv_temperature, float* weights) {
  return portable::RowMass(row, max, inv_temperature, weights);
}

int32_t RaceRowImpl(std::span<const float> row, const RaceSettings& settings) {
  return portable::RaceRow(row, settings);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using DU64 = hn::RepartitionToWide<DU>;
using DF64 = hn::RepartitionToWide<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;

HWY_INLINE VF Const(float value) { return hn::Set(DF(), value); }
HWY_INLINE VF Step(VF acc, VF x, float c) { return hn::Add(hn::Mul(acc, x), Const(c)); }

// TokenWeight of draw.h, operation for operation.
HWY_INLINE VF Weight(VF x, VF minus_max, VF inv_temperature) {
  const VF d = hn::Mul(hn::Add(x, minus_max), inv_temperature);
  const auto live = hn::Ge(d, Const(draw::kMinExponent));
  const VF magic = Const(draw::kRoundMagic);
  const VF n = hn::Sub(hn::Add(hn::Mul(d, Const(draw::kLog2E)), magic), magic);
  const VF r =
      hn::Sub(hn::Sub(d, hn::Mul(n, Const(draw::kLn2High))), hn::Mul(n, Const(draw::kLn2Low)));
  VF p = Step(Step(Const(draw::kExp4), r, draw::kExp3), r, draw::kExp2);
  p = Step(Step(p, r, draw::kExp1), r, draw::kExp0);
  const VF e = hn::Add(hn::Add(hn::Mul(hn::Mul(r, r), p), r), Const(1.0f));
  const VI shift = hn::ShiftLeft<23>(hn::ConvertTo(DI(), n));
  const VF scaled = hn::BitCast(DF(), hn::Add(hn::BitCast(DI(), e), shift));
  return hn::IfThenElseZero(live, scaled);
}

// High and low halves of the 64-bit products of every lane.
HWY_INLINE void MulWide(VU a, VU multiplier, VU& high, VU& low) {
  const auto even = hn::MulEven(a, multiplier);
  const auto odd =
      hn::MulEven(hn::BitCast(DU(), hn::ShiftRight<32>(hn::BitCast(DU64(), a))), multiplier);
  high = hn::OddEven(hn::BitCast(DU(), odd), hn::BitCast(DU(), hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(DU(), hn::ShiftLeft<32>(odd)), hn::BitCast(DU(), even));
}

// Philox of every lane's counter, in place.
HWY_INLINE void PhiloxLanes(VU& v0, VU& v1, VU& v2, VU& v3, PhiloxKey key) {
  const VU mul0 = hn::Set(DU(), kPhiloxMul0);
  const VU mul1 = hn::Set(DU(), kPhiloxMul1);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    VU high0, low0, high1, low1;
    MulWide(v0, mul0, high0, low0);
    MulWide(v2, mul1, high1, low1);
    v0 = hn::Xor(hn::Xor(high1, v1), hn::Set(DU(), key.k0));
    v2 = hn::Xor(hn::Xor(high0, v3), hn::Set(DU(), key.k1));
    v1 = low1;
    v3 = low0;
    key = {key.k0 + kPhiloxWeyl0, key.k1 + kPhiloxWeyl1};
  }
}

RowScan ScanRowImpl(std::span<const float> row, std::span<float> block_max) {
  static_assert(kRowBlock % hn::MaxLanes(DF()) == 0);
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const float* data = row.data();
  const size_t num_whole = row.size() / kRowBlock;
  VF nan_seen = hn::Zero(d);
  VF top = Const(-std::numeric_limits<float>::infinity());
  for (size_t block = 0; block < num_whole; ++block) {
    const float* begin = data + block * kRowBlock;
    VF best = hn::LoadU(d, begin);
    nan_seen = hn::Or(nan_seen, hn::VecFromMask(d, hn::IsNaN(best)));
    for (size_t offset = lanes; offset < kRowBlock; offset += lanes) {
      const VF x = hn::LoadU(d, begin + offset);
      nan_seen = hn::Or(nan_seen, hn::VecFromMask(d, hn::IsNaN(x)));
      best = hn::Max(best, x);
    }
    top = hn::Max(top, best);
    block_max[block] = hn::GetLane(hn::MaxOfLanes(d, best));
  }
  const DI di;
  const bool has_nan = !hn::AllTrue(di, hn::Eq(hn::BitCast(di, nan_seen), hn::Zero(di)));
  return portable::ScanRow(row, block_max, num_whole, hn::GetLane(hn::MaxOfLanes(d, top)), has_nan);
}

uint64_t RowMassImpl(std::span<const float> row, float max, float inv_temperature, float* weights) {
  // Doubles hold the integer sums exactly: 2^16 tokens of at most 2^36 each, per chunk.
  constexpr size_t kChunk = size_t{1} << 16;
  const DF d;
  const DF64 d64;
  const hn::Half<DF> dh;
  const size_t lanes = hn::Lanes(d);
  const VF minus_max = Const(-max);
  const VF inv_t = Const(inv_temperature);
  const VF scale = Const(draw::kMassScale);
  const VF massless = Const(draw::kMasslessExponent);
  uint64_t mass = 0;
  size_t id = 0;
  while (id + lanes <= row.size()) {
    const size_t end = std::min(row.size(), id + kChunk);
    auto sum0 = hn::Zero(d64);
    auto sum1 = hn::Zero(d64);
    for (; id + lanes <= end; id += lanes) {
      const VF x = hn::LoadU(d, row.data() + id);
      const VF exponent = hn::Mul(hn::Add(x, minus_max), inv_t);
      if (hn::AllTrue(d, hn::Lt(exponent, massless))) {
        if (weights != nullptr) hn::StoreU(hn::Zero(d), d, weights + id);
        continue;
      }
      const VF w = Weight(x, minus_max, inv_t);
      if (weights != nullptr) hn::StoreU(w, d, weights + id);
      const VF fixed = hn::Trunc(hn::Mul(w, scale));
      sum0 = hn::Add(sum0, hn::PromoteTo(d64, hn::LowerHalf(dh, fixed)));
      sum1 = hn::Add(sum1, hn::PromoteTo(d64, hn::UpperHalf(dh, fixed)));
    }
    mass += static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(d64, hn::Add(sum0, sum1))));
  }
  return mass + portable::RowMass(row, max, inv_temperature, weights, id);
}

// Most tokens lose by far, so the vector code only proves that a group of 4 * lanes tokens cannot
// hold the winner; the few groups that might (a new leader comes about ln(vocabulary) times) go
// through the scalar code. Three proofs, each cheaper than the work it saves, all from what E is:
// the leader scores at least 1 / kMostExponential, as the likeliest token always runs; E >= 2^-32;
// and E = -log(1 - v) >= v, where v is the uniform number behind it.
int32_t RaceRowImpl(std::span<const float> row, const RaceSettings& settings) {
  constexpr float kMostExponential = 23.0f;
  constexpr float kLeastExponential = 2.328306437e-10f;  // 2^-32
  constexpr float kHopelessExponent = -25.4f;            // exp of it is below the two's quotient.
  constexpr float kMargin = 0.999999f;                   // For the rounding of v * leader.
  const DF d;
  const DI di;
  const DU du;
  const size_t lanes = hn::Lanes(d);
  const VF minus_max = Const(-settings.max);
  const VF inv_t = Const(settings.inv_temperature);
  const VF min_weight = Const(settings.min_weight);
  const VF cut_logit = Const(settings.cutoff.logit);
  const VI cut_id = hn::Set(di, settings.cutoff.id);
  // Nor can a token win that min_weight keeps out; the margin is far above the rounding of weights.
  const float min_exponent = std::log(settings.min_weight) - 0.001f;
  const VF hopeless = Const(std::max(kHopelessExponent, min_exponent));
  const PhiloxKey key = DrawKey(settings.seed);
  const PhiloxCounter counter = DrawCounter(0, settings.position);

  const auto weigh = [&](VF x, VI ids) HWY_ATTR {
    const VF w = Weight(x, minus_max, inv_t);
    const auto beyond = hn::RebindMask(d, hn::Gt(ids, cut_id));
    const auto kept = hn::Or(hn::Gt(x, cut_logit), hn::AndNot(beyond, hn::Eq(x, cut_logit)));
    return hn::IfThenElseZero(hn::And(kept, hn::Ge(w, min_weight)), w);
  };
  const auto might_lead = [&](VF w, VU bits, VF bar) HWY_ATTR {
    const VF v = hn::Add(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<1>(bits))), Const(0.5f));
    return hn::Gt(w, hn::Mul(hn::Mul(v, Const(draw::kUniformScale)), bar));
  };

  portable::Runner leader;
  VF bar = Const(kMargin / kMostExponential);  // What a score has to exceed to matter.
  HWY_ALIGN float weights[4 * hn::MaxLanes(d)];
  HWY_ALIGN uint32_t bits[4 * hn::MaxLanes(d)];
  const VI lane_ids = hn::ShiftLeft<2>(hn::Iota(di, 0));  // Lane l holds ids 4l .. 4l+3.
  size_t id = 0;
  for (; id + 4 * lanes <= row.size(); id += 4 * lanes) {
    VF x0, x1, x2, x3;
    hn::LoadInterleaved4(d, row.data() + id, x0, x1, x2, x3);
    const VF largest = hn::Max(hn::Max(x0, x1), hn::Max(x2, x3));
    if (hn::AllTrue(d, hn::Lt(hn::Mul(hn::Add(largest, minus_max), inv_t), hopeless))) continue;
    const VI id0 = hn::Add(lane_ids, hn::Set(di, static_cast<int32_t>(id)));
    const VF w0 = weigh(x0, id0);
    const VF w1 = weigh(x1, hn::Add(id0, hn::Set(di, 1)));
    const VF w2 = weigh(x2, hn::Add(id0, hn::Set(di, 2)));
    const VF w3 = weigh(x3, hn::Add(id0, hn::Set(di, 3)));
    const VF heaviest = hn::Max(hn::Max(w0, w1), hn::Max(w2, w3));
    if (hn::AllTrue(d, hn::Le(heaviest, hn::Mul(bar, Const(kLeastExponential))))) continue;
    VU v0 = hn::BitCast(du, hn::ShiftRight<2>(id0));
    VU v1 = hn::Set(du, counter.v1);
    VU v2 = hn::Set(du, counter.v2);
    VU v3 = hn::Set(du, counter.v3);
    PhiloxLanes(v0, v1, v2, v3, key);
    const auto hopeful = hn::Or(hn::Or(might_lead(w0, v0, bar), might_lead(w1, v1, bar)),
                                hn::Or(might_lead(w2, v2, bar), might_lead(w3, v3, bar)));
    if (hn::AllFalse(d, hopeful)) continue;
    hn::StoreInterleaved4(w0, w1, w2, w3, d, weights);  // Back in the order of ids.
    hn::StoreInterleaved4(v0, v1, v2, v3, du, bits);
    for (size_t offset = 0; offset < 4 * lanes; ++offset) {
      const float score = draw::Div(weights[offset], ExponentialFromBits(bits[offset]));
      if (score > leader.score) leader = {score, static_cast<int32_t>(id + offset)};
    }
    bar = hn::Max(bar, Const(kMargin * leader.score));
  }
  return portable::RaceRow(row, settings, id, leader);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace lapidary
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary {

HWY_EXPORT(ScanRowImpl);
HWY_EXPORT(RowMassImpl);
HWY_EXPORT(RaceRowImpl);

RowScan ScanRow(std::span<const float> row, std::span<float> block_max) {
  return HWY_DYNAMIC_DISPATCH(ScanRowImpl)(row, block_max);
}

uint64_t RowMass(std::span<const float> row, float max, float inv_temperature, float* weights) {
  return HWY_DYNAMIC_DISPATCH(RowMassImpl)(row, max, inv_temperature, weights);
}

int32_t RaceRow(std::span<const float> row, const RaceSettings& settings) {
  return HWY_DYNAMIC_DISPATCH(RaceRowImpl)(row, settings);
}

int32_t RaceIds(std::span<const float> row, std::span<const int32_t> ids,
                const RaceSettings& settings) {
  portable::Runner leader;
  for (const int32_t id : ids) portable::RunToken(row[id], id, settings, leader);
  return leader.id;
}

}  // namespace lapidary
#endif  // HWY_ONCE
