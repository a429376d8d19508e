#include "ops/cpu/kv_codes.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/dtype.h"
#include "tensor/float8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kv_codes.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/unpack_codes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;

void DecodeInt8(const int8_t* HWY_RESTRICT codes, float scale, int64_t count,
                float* HWY_RESTRICT values) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t idx = 0;
  for (; idx + lanes <= count; idx += lanes) {
    const auto code = hn::PromoteTo(Ints(), hn::LoadU(hn::Rebind<int8_t, Floats>(), codes + idx));
    hn::StoreU(hn::Mul(hn::ConvertTo(d, code), hn::Set(d, scale)), d, values + idx);
  }
  for (; idx < count; ++idx) values[idx] = static_cast<float>(codes[idx]) * scale;
}

void DecodeFp8(const uint8_t* HWY_RESTRICT bytes, float scale, int64_t count,
               float* HWY_RESTRICT values) {
  int64_t idx = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats d;
  const auto unit = hn::Set(d, scale * codes::E4M3::kScaleUnit);
  for (; idx + kCodePiece <= count; idx += kCodePiece) {
    codes::E4M3::Unpack(bytes + idx, unit, [&](int first, hn::Vec<Floats> piece) {
      hn::StoreU(piece, d, values + idx + first);
    });
  }
#endif
  for (; idx < count; ++idx) values[idx] = Float8ToFloat(bytes[idx]) * scale;
}

void DecodeBf16(const uint16_t* HWY_RESTRICT stored, int64_t count, float* HWY_RESTRICT values) {
  const Floats d;
  const Ints di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t idx = 0;
  for (; idx + lanes <= count; idx += lanes) {
    const auto bits = hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint16_t, Floats>(), stored + idx));
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, values + idx);
  }
  for (; idx < count; ++idx) values[idx] = Bf16ToFloat(stored[idx]);
}

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(DecodeInt8);
HWY_EXPORT(DecodeFp8);
HWY_EXPORT(DecodeBf16);

namespace {

// NaN if one of them is no finite number.
float LargestMagnitude(const float* values, int count) {
  float largest = 0.0f;
  for (int idx = 0; idx < count; ++idx) {
    const float magnitude = std::abs(values[idx]);
    if (!(magnitude <= FLT_MAX)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, magnitude);
  }
  return largest;
}

// The scale, and the factor that makes codes of values; the inverse of zero and of the smallest
// numbers is infinite, and their group is zero.
struct GroupScale {
  float scale = 0.0f;
  float factor = 0.0f;
};
GroupScale ScaleOf(const float* values, int count, float largest_code) {
  const float largest = LargestMagnitude(values, count);
  if (std::isnan(largest)) return {.scale = largest, .factor = 0.0f};
  const float factor = largest_code / largest;
  if (!(factor <= FLT_MAX)) return {};
  return {.scale = largest / largest_code, .factor = factor};
}

template <typename Code, typename RoundValue>
void EncodeGroups(const KvEntryPlan& entry, const float* values, float largest_code,
                  const RoundValue& round, Code* codes, float* scales) {
  ForEachScaleGroup(entry, [&](int first, int count) {
    const GroupScale group = ScaleOf(values + first, count, largest_code);
    *scales++ = group.scale;
    if (group.factor == 0.0f) {
      std::fill_n(codes + first, count, Code{0});
      return;
    }
    for (int idx = first; idx < first + count; ++idx) {
      codes[idx] = round(values[idx] * group.factor);
    }
  });
}

}  // namespace

void EncodeKvEntry(KvFormat format, const KvEntryPlan& entry, const float* values, void* stored,
                   float* scales) {
  switch (format) {
    case KvFormat::kF32:
      std::copy_n(values, entry.entry_len, static_cast<float*>(stored));
      return;
    case KvFormat::kBF16:
      std::transform(values, values + entry.entry_len, static_cast<uint16_t*>(stored), FloatToBf16);
      return;
    case KvFormat::kInt8:
      EncodeGroups(
          entry, values, 127.0f,
          [](float scaled) { return static_cast<int8_t>(std::nearbyint(scaled)); },
          static_cast<int8_t*>(stored), scales);
      return;
    case KvFormat::kFp8:
      EncodeGroups(entry, values, kLargestFloat8, FloatToFloat8, static_cast<uint8_t*>(stored),
                   scales);
      return;
  }
}

void DecodeKvEntry(KvFormat format, const KvEntryPlan& entry, const void* stored,
                   const float* scales, float* values) {
  switch (format) {
    case KvFormat::kF32:
      std::copy_n(static_cast<const float*>(stored), entry.entry_len, values);
      return;
    case KvFormat::kBF16:
      HWY_DYNAMIC_DISPATCH(DecodeBf16)
      (static_cast<const uint16_t*>(stored), entry.entry_len, values);
      return;
    case KvFormat::kInt8:
      ForEachScaleGroup(entry, [&](int first, int count) {
        HWY_DYNAMIC_DISPATCH(DecodeInt8)
        (static_cast<const int8_t*>(stored) + first, *scales++, count, values + first);
      });
      return;
    case KvFormat::kFp8:
      ForEachScaleGroup(entry, [&](int first, int count) {
        HWY_DYNAMIC_DISPATCH(DecodeFp8)
        (static_cast<const uint8_t*>(stored) + first, *scales++, count, values + first);
      });
      return;
  }
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
