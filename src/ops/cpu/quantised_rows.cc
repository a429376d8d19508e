#include "ops/cpu/quantised_rows.h"

#include <cfloat>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quantised_rows.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kRun = kQuantisedRun;
constexpr int kHalf = kRun / 2;
using Floats = hn::CappedTag<float, kHalf>;
using Ints = hn::RebindToSigned<Floats>;

// The bits of the largest magnitude, which order as the magnitudes do; those of NaN lie above.
HWY_INLINE int32_t LargestBits(const float* HWY_RESTRICT x) {
  const Floats d;
  const Ints di;
  const auto magnitude = [&](int idx) {
    return hn::And(hn::BitCast(di, hn::LoadU(d, x + idx)), hn::Set(di, 0x7fffffff));
  };
  auto largest = magnitude(0);
  for (int idx = static_cast<int>(hn::Lanes(d)); idx < kRun;
       idx += static_cast<int>(hn::Lanes(d))) {
    largest = hn::Max(largest, magnitude(idx));
  }
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

// Rounds sixteen values to the nearest integers, ties to even, and returns their sum.
HWY_INLINE int32_t RoundHalf(const float* HWY_RESTRICT x, float factor, int8_t* HWY_RESTRICT q) {
  const Floats d;
  const Ints di;
  const hn::Rebind<int8_t, Floats> bytes;
  auto sum = hn::Zero(di);
  for (int idx = 0; idx < kHalf; idx += static_cast<int>(hn::Lanes(d))) {
    const auto codes = hn::NearestInt(hn::Mul(hn::LoadU(d, x + idx), hn::Set(d, factor)));
    hn::StoreU(hn::DemoteTo(bytes, codes), bytes, q + idx);
    sum = hn::Add(sum, codes);
  }
  return hn::GetLane(hn::SumOfLanes(di, sum));
}

HWY_INLINE void QuantiseRun(const float* HWY_RESTRICT x, int8_t* HWY_RESTRICT q, RunFactors* run) {
  constexpr int32_t kInfinityBits = 0x7f800000;
  const int32_t largest_bits = LargestBits(x);
  if (largest_bits >= kInfinityBits) {
    for (int idx = 0; idx < kRun; ++idx) q[idx] = 0;
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    *run = {.scale = kNaN, .scaled_sum = kNaN, .sum = {0, 0}};
    return;
  }
  float largest;
  hwy::CopySameSize(&largest_bits, &largest);
  // The inverse of 0 and of a subnormal is infinite: such a run is 0.
  const float inverse = 127.0f / largest;
  const float factor = inverse <= FLT_MAX ? inverse : 0.0f;
  run->scale = factor > 0.0f ? largest / 127.0f : 0.0f;
  for (int half = 0; half < 2; ++half) {
    run->sum[half] = RoundHalf(x + half * kHalf, factor, q + half * kHalf);
  }
  run->scaled_sum = run->scale * static_cast<float>(run->sum[0] + run->sum[1]);
}

void QuantiseRuns(const float* x, int64_t count, int8_t* q, RunFactors* runs) {
  for (int64_t run = 0; run < count; ++run) QuantiseRun(x + run * kRun, q + run * kRun, runs + run);
}

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(QuantiseRuns);

QuantisedRows RowBuffer::Get(int64_t rows, int64_t in) {
  const int64_t count = rows * in;
  if (count > capacity_) {
    q_ = std::make_unique_for_overwrite<int8_t[]>(count);
    runs_ = std::make_unique_for_overwrite<RunFactors[]>(count / kQuantisedRun);
    capacity_ = count;
  }
  return {.rows = rows, .in = in, .q = q_.get(), .runs = runs_.get()};
}

void QuantiseRows(const float* x, int64_t begin, int64_t end, const QuantisedRows& out) {
  const int64_t first = begin * out.num_runs();
  HWY_DYNAMIC_DISPATCH(QuantiseRuns)
  (x + first * kQuantisedRun, (end - begin) * out.num_runs(), out.q + first * kQuantisedRun,
   out.runs + first);
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
