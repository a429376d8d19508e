#include "ops/cpu/kv_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/cpu/op_testing.h"
#include "tensor/dtype.h"
#include "tensor/float8.h"

namespace lapidary::cpu {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8, KvFormat::kFp8};
// Those of the models, and odd ones.
constexpr KvEntryPlan kEntries[] = {{256, 256, 256, 512},
                                    {512, 128, 512, 640},
                                    {512, 512, 512, 1024},
                                    {6, 2, 6, 8},
                                    {37, 37, 37, 74}};

struct Stored {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
};

Stored Encode(KvFormat format, const KvEntryPlan& entry, const std::vector<float>& values) {
  Stored stored{std::vector<std::byte>(entry.entry_len * KvElementBytes(format)),
                std::vector<float>(NumKvScales(format, entry))};
  EncodeKvEntry(format, entry, values.data(), stored.bytes.data(), stored.scales.data());
  return stored;
}

std::vector<float> Decode(KvFormat format, const KvEntryPlan& entry, const Stored& stored) {
  Guarded values(entry.entry_len, 1);
  DecodeKvEntry(format, entry, stored.bytes.data(), stored.scales.data(), values.data());
  values.CheckGuards();
  return {values.data(), values.data() + entry.entry_len};
}

TEST(KvCodes, AreDecodedAsCodeTimesScaleOnEveryTarget) {
  ForEachTarget([] {
    Random random(50);
    for (const KvEntryPlan& entry : kEntries) {
      const std::vector<float> values = random.Vector(entry.entry_len, 3.0f);
      for (const KvFormat format : kFormats) {
        const Stored stored = Encode(format, entry, values);
        std::vector<float> expected(entry.entry_len);
        int group = 0;
        ForEachScaleGroup(entry, [&](int first, int count) {
          for (int idx = first; idx < first + count; ++idx) {
            const std::byte* at = stored.bytes.data() + idx * KvElementBytes(format);
            if (format == KvFormat::kF32) std::memcpy(&expected[idx], at, 4);
            if (format == KvFormat::kBF16) {
              uint16_t bits;
              std::memcpy(&bits, at, 2);
              expected[idx] = Bf16ToFloat(bits);
            }
            const auto code = std::to_integer<uint8_t>(*at);
            if (format == KvFormat::kInt8) {
              expected[idx] = static_cast<float>(static_cast<int8_t>(code)) * stored.scales[group];
            }
            if (format == KvFormat::kFp8) {
              expected[idx] = Float8ToFloat(code) * stored.scales[group];
            }
          }
          ++group;
        });
        EXPECT_EQ(Decode(format, entry, stored), expected) << KvFormatName(format);
      }
    }
  });
}

TEST(KvCodes, EveryCodeOfFp8IsDecodedExactly) {
  ForEachTarget([] {
    const KvEntryPlan entry{128, 128, 128, 256};
    Stored stored{std::vector<std::byte>(256), {1.0f, 1.0f}};
    for (int code = 0; code < 256; ++code) stored.bytes[code] = static_cast<std::byte>(code);
    const std::vector<float> values = Decode(KvFormat::kFp8, entry, stored);
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7f) == 0x7f) continue;  // no number; no entry has it
      EXPECT_EQ(values[code], Float8ToFloat(static_cast<uint8_t>(code))) << code;
    }
  });
}

TEST(KvCodes, LoseHalfACodeAtMost) {
  Random random(51);
  for (const KvEntryPlan& entry : kEntries) {
    std::vector<float> values = random.Vector(entry.entry_len);
    values[entry.entry_len - 1] = 100.0f;  // costs its own group alone
    const auto error = [&](KvFormat format, int idx) {
      return std::abs(Decode(format, entry, Encode(format, entry, values))[idx] - values[idx]);
    };
    ForEachScaleGroup(entry, [&](int first, int count) {
      float largest = 0.0f;
      for (int idx = first; idx < first + count; ++idx) {
        largest = std::max(largest, std::abs(values[idx]));
      }
      for (int idx = first; idx < first + count; idx += 17) {
        EXPECT_LE(error(KvFormat::kInt8, idx), 0.5001f * largest / 127.0f);
        EXPECT_LE(error(KvFormat::kFp8, idx),
                  0.0626f * std::abs(values[idx]) + 0.001f * largest / 448.0f);
        EXPECT_LE(error(KvFormat::kBF16, idx), 0.004f * std::abs(values[idx]));
        EXPECT_EQ(error(KvFormat::kF32, idx), 0.0f);
      }
    });
  }
}

TEST(KvCodes, ZerosStayZeroAndWhatIsNoNumberBecomesNan) {
  const KvEntryPlan entry{256, 256, 256, 512};
  for (const KvFormat format : {KvFormat::kInt8, KvFormat::kFp8}) {
    std::vector<float> values(512, 0.0f);
    values[130] = 1e-42f;  // too small for a scale
    values[260] = std::numeric_limits<float>::infinity();
    values[400] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> decoded = Decode(format, entry, Encode(format, entry, values));
    for (int idx = 0; idx < 256; ++idx) EXPECT_EQ(decoded[idx], 0.0f) << idx;
    for (int idx = 256; idx < 512; ++idx) EXPECT_TRUE(std::isnan(decoded[idx])) << idx;
  }
}

}  // namespace
}  // namespace lapidary::cpu
