// The sum over the lanes of a vector, in one fixed order however many are summed at once. Included
// once per vector target.
#if defined(LAPIDARY_OPS_CPU_SUM_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAPIDARY_OPS_CPU_SUM_LANES_INL_H_
#undef LAPIDARY_OPS_CPU_SUM_LANES_INL_H_
#else
#define LAPIDARY_OPS_CPU_SUM_LANES_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

template <class D, class V>
HWY_INLINE void SumLanesOfFour(D, V v0, V v1, V v2, V v3, float* HWY_RESTRICT sums) {
  namespace hn = hwy::HWY_NAMESPACE;
  sums[0] = hn::GetLane(v0);
  sums[1] = hn::GetLane(v1);
  sums[2] = hn::GetLane(v2);
  sums[3] = hn::GetLane(v3);
}

#else

// Sums the blocks of four lanes: four partial sums each, those of four vectors.
template <class D>
HWY_INLINE void AddBlocks(D d, hwy::HWY_NAMESPACE::Vec<D> blocks, float* HWY_RESTRICT sums) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    AddBlocks(half, hn::Add(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks)), sums);
  } else {
    hn::StoreU(blocks, d, sums);
  }
}

// sums[i] = the sum of all lanes of v_i. A quarter of the work of four sums one by one, for the
// vectors share every addition.
template <class D, class V>
HWY_INLINE void SumLanesOfFour(D d, V v0, V v1, V v2, V v3, float* HWY_RESTRICT sums) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Repartition<double, D> pairs;
  const V v01 = hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1));
  const V v23 = hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3));
  const auto p01 = hn::BitCast(pairs, v01);
  const auto p23 = hn::BitCast(pairs, v23);
  const V all = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, p01, p23)),
                        hn::BitCast(d, hn::InterleaveUpper(pairs, p01, p23)));
  AddBlocks(d, all, sums);
}

#endif  // HWY_TARGET == HWY_SCALAR

template <class D, class V>
HWY_INLINE float SumLanes(D d, V v) {
  float sums[4];
  SumLanesOfFour(d, v, v, v, v, sums);
  return sums[0];
}

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
