// The formats in which the KV cache holds its entries, as --kv-cache-dtype chooses them.
//
// An entry becomes its format when it is made, before any attention reads it. So a key that this
// step computed and one that comes from a page, a snapshot or another step are the same bits, and
// answers do not depend on how a prompt was cut, cached, drafted or resumed.
//
// kInt8 and kFp8 hold a code for each value and an f32 scale for up to 128 of them: a value is
// code * scale, rounded once in f32. A group of values never crosses from the part of an entry that
// only the value (or only the key) has into another, so one outlier costs its own group.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/kv_entry.h"

namespace lapidary {

enum class KvFormat {
  kF32,
  kBF16,
  kInt8,  // -127 to 127
  kFp8,   // F8_E4M3
};

inline constexpr int kKvScaleGroup = 128;

constexpr int64_t KvElementBytes(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return 4;
    case KvFormat::kBF16:
      return 2;
    case KvFormat::kInt8:
    case KvFormat::kFp8:
      return 1;
  }
  return 0;
}

constexpr bool HasScales(KvFormat format) {
  return format == KvFormat::kInt8 || format == KvFormat::kFp8;
}

// body(first value, count) for the groups of an entry that share a scale, in order.
template <typename Body>
constexpr void ForEachScaleGroup(const KvEntryPlan& entry, const Body& body) {
  const std::array<int, 4> cuts = {0, entry.key_offset, entry.value_len, entry.entry_len};
  for (int part = 0; part < 3; ++part) {
    for (int first = cuts[part]; first < cuts[part + 1]; first += kKvScaleGroup) {
      body(first, std::min(kKvScaleGroup, cuts[part + 1] - first));
    }
  }
}

// Scales of an entry in this format.
constexpr int NumKvScales(KvFormat format, const KvEntryPlan& entry) {
  int count = 0;
  if (HasScales(format)) ForEachScaleGroup(entry, [&](int, int) { ++count; });
  return count;
}

// Of one entry, its scales included.
constexpr int64_t KvEntryBytes(KvFormat format, const KvEntryPlan& entry) {
  return entry.entry_len * KvElementBytes(format) +
         NumKvScales(format, entry) * static_cast<int64_t>(sizeof(float));
}

// "float32", "bfloat16", "int8", "fp8".
std::string KvFormatName(KvFormat format);
// Those names, and vLLM's other ones for FP8.
Result<KvFormat> ParseKvFormat(std::string_view name);

}  // namespace lapidary
