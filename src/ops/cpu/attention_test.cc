#include "ops/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/kv_codes.h"
#include "ops/cpu/op_testing.h"

namespace lapidary::cpu {
namespace {

struct Case {
  KvEntryPlan entry;
  int num_heads;
  int64_t num_keys;
};

std::vector<float> Attend(const Case& c, std::span<const KeySegment> segments,
                          const std::vector<float>& q) {
  AttentionScratch scratch;
  Guarded out(c.num_heads * c.entry.value_len, 1);
  AttendRow(segments, c.entry, q.data(), c.num_heads, scratch, out.data());
  out.CheckGuards();
  return {out.data(), out.data() + out.size()};
}

// The definition in double, and the error that f32 arithmetic may make.
void CheckAgainstDefinition(const Case& c, const float* entries, int64_t stride,
                            const std::vector<float>& q, const std::vector<float>& out) {
  for (int head = 0; head < c.num_heads; ++head) {
    std::vector<double> score(c.num_keys);
    double score_error = 0;
    for (int64_t key = 0; key < c.num_keys; ++key) {
      const ExactDot dot(
          {q.data() + head * c.entry.key_len, static_cast<size_t>(c.entry.key_len)},
          {entries + key * stride + c.entry.key_offset, static_cast<size_t>(c.entry.key_len)});
      score[key] = dot.value;
      score_error = std::max(score_error, dot.Tolerance());
    }
    const double max = *std::max_element(score.begin(), score.end());
    const double min = *std::min_element(score.begin(), score.end());
    double sum = 0;
    for (double& value : score) sum += value = std::exp(value - max);
    // A weight's relative error: that of its score and of the largest, the rounding of their
    // difference, exp's; the sums over the keys add a rounding each; the same for the denominator.
    const double relative =
        2 * (2 * score_error + (max - min + 4 + static_cast<double>(c.num_keys)) * kUnit);
    for (int dim = 0; dim < c.entry.value_len; ++dim) {
      double expected = 0, magnitude = 0;
      for (int64_t key = 0; key < c.num_keys; ++key) {
        const double term = score[key] / sum * double{entries[key * stride + dim]};
        expected += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(out[head * c.entry.value_len + dim], expected, magnitude * (relative + 4 * kUnit))
          << "head " << head << " dim " << dim << " keys " << c.num_keys;
    }
  }
}

std::vector<KvEntryPlan> Entries() {
  return {{256, 256, 256, 512}, {512, 0, 640, 640}, {512, 512, 512, 1024},
          {6, 0, 10, 10},       {37, 37, 37, 74},   {2, 2, 2, 4}};
}

TEST(AttendRow, MatchesTheDefinitionForAnyHeadsAndKeys) {
  ForEachTarget([] {
    Random random(30);
    for (const KvEntryPlan& entry : Entries()) {
      for (const int num_heads : {1, 2, 3, 4, 5, 8, 16}) {
        for (const int64_t num_keys : {1, 2, 3, 7, 16, 33, 129}) {
          const Case c{entry, num_heads, num_keys};
          const int64_t stride = entry.entry_len + 3;
          Guarded entries(num_keys * stride, 1);
          random.Fill(entries.span());
          // Scores with a standard deviation of about 2, as in a trained model.
          const std::vector<float> q = random.Vector(
              num_heads * entry.key_len, 2.0f / std::sqrt(static_cast<float>(entry.key_len)));
          const KeySegment segment{entries.data(), stride, num_keys};
          ASSERT_NO_FATAL_FAILURE(
              CheckAgainstDefinition(c, entries.data(), stride, q, Attend(c, {&segment, 1}, q)));
        }
      }
    }
  });
}

TEST(AttendRow, OfOneKeyIsItsValue) {
  Random random(31);
  const KvEntryPlan entry{256, 256, 256, 512};
  const std::vector<float> entries = random.Vector(512), q = random.Vector(2 * 256, 10.0f);
  const KeySegment segment{entries.data(), 512, 1};
  const std::vector<float> out = Attend({entry, 2, 1}, {&segment, 1}, q);
  for (int idx = 0; idx < 512; ++idx) EXPECT_EQ(out[idx], entries[idx % 256]);
}

TEST(AttendRow, IsBitwiseTheSameHoweverTheKeysAreCut) {
  ForEachTarget([] {
    Random random(32);
    for (const KvEntryPlan& entry : Entries()) {
      const int64_t num_keys = 61;
      const Case c{entry, 5, num_keys};
      const std::vector<float> entries = random.Vector(num_keys * entry.entry_len);
      const std::vector<float> q = random.Vector(c.num_heads * entry.key_len, 0.1f);
      const KeySegment whole{entries.data(), entry.entry_len, num_keys};
      const std::vector<float> expected = Attend(c, {&whole, 1}, q);
      for (int round = 0; round < 20; ++round) {
        // Pieces copied to places of their own with strides of their own; some are empty.
        std::vector<std::vector<float>> places;
        std::vector<KeySegment> segments;
        for (int64_t key = 0; key < num_keys;) {
          const int64_t count = std::min<int64_t>(random.Below(round < 3 ? 2 : 20), num_keys - key);
          const int64_t stride = entry.entry_len + random.Below(9);
          std::vector<float>& place =
              places.emplace_back(count * stride + 1, std::numeric_limits<float>::quiet_NaN());
          for (int64_t idx = 0; idx < count; ++idx) {
            std::copy_n(entries.data() + (key + idx) * entry.entry_len, entry.entry_len,
                        place.data() + idx * stride);
          }
          segments.push_back({place.data(), stride, count});
          key += count;
        }
        const std::vector<float> out = Attend(c, segments, q);
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0)
            << "round " << round;
      }
    }
  });
}

TEST(AttendRow, AHeadIsBitwiseTheSameAloneAndBesideOthers) {
  ForEachTarget([] {
    Random random(33);
    for (const KvEntryPlan& entry : Entries()) {
      const std::vector<float> entries = random.Vector(21 * entry.entry_len);
      const std::vector<float> q = random.Vector(7 * entry.key_len, 0.1f);
      const KeySegment segment{entries.data(), entry.entry_len, 21};
      const std::vector<float> together = Attend({entry, 7, 21}, {&segment, 1}, q);
      for (int head = 0; head < 7; ++head) {
        const std::vector<float> own(q.begin() + head * entry.key_len,
                                     q.begin() + (head + 1) * entry.key_len);
        const std::vector<float> alone = Attend({entry, 1, 21}, {&segment, 1}, own);
        ASSERT_EQ(std::memcmp(alone.data(), together.data() + head * entry.value_len,
                              alone.size() * sizeof(float)),
                  0);
      }
    }
  });
}

// A chunk of a prompt: row r sees the keys [max(0, first + r - window + 1), first + r].
TEST(AttendRows, AreBitwiseWhatEachRowIsAlone) {
  ForEachTarget([] {
    Random random(34);
    for (const KvEntryPlan& entry : Entries()) {
      for (const int num_heads : {1, 2, 3, 8}) {
        for (const int num_rows : {1, 2, 7, 20}) {
          const int64_t first = random.Below(2) * random.Below(150);
          const int64_t num_keys = first + num_rows;
          const int64_t window = random.Below(2) == 0 ? num_keys : 1 + random.Below(100);
          Guarded entries(num_keys * entry.entry_len, 1);
          random.Fill(entries.span());
          const KeySegment segments[] = {
              {entries.data(), entry.entry_len, first},
              {entries.data() + first * entry.entry_len, entry.entry_len, num_rows}};
          const int64_t q_len = int64_t{num_heads} * entry.key_len;
          const int64_t out_len = int64_t{num_heads} * entry.value_len;
          const std::vector<float> q = random.Vector(num_rows * q_len, 0.1f);
          Guarded out(num_rows * out_len, 1);
          std::vector<AttentionRow> rows;
          for (int row = 0; row < num_rows; ++row) {
            const int64_t end = first + row + 1;
            rows.push_back({.q = q.data() + row * q_len,
                            .out = out.data() + row * out_len,
                            .begin = std::max<int64_t>(0, end - window),
                            .end = end});
          }
          AttentionScratch scratch;
          AttendRows(segments, entry, num_heads, rows, scratch);
          out.CheckGuards();
          for (int row = 0; row < num_rows; ++row) {
            const auto [row_q, row_out, begin, end] = rows[row];
            const KeySegment seen{entries.data() + begin * entry.entry_len, entry.entry_len,
                                  end - begin};
            const std::vector<float> alone = Attend({entry, num_heads, end - begin}, {&seen, 1},
                                                    std::vector<float>(row_q, row_q + q_len));
            ASSERT_EQ(std::memcmp(alone.data(), row_out, out_len * sizeof(float)), 0)
                << "row " << row << " of " << num_rows << ", keys " << begin << " to " << end;
          }
        }
      }
    }
  });
}

// [count, entry_len] floats in a format, and as they come back.
struct StoredKeys {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<float> decoded;

  StoredKeys(KvFormat format, const KvEntryPlan& entry, const std::vector<float>& values)
      : codes(values.size() * KvElementBytes(format)), decoded(values.size()) {
    const int64_t count = std::ssize(values) / entry.entry_len;
    const int num_scales = NumKvScales(format, entry);
    scales.resize(count * num_scales);
    for (int64_t idx = 0; idx < count; ++idx) {
      std::byte* const at = codes.data() + idx * entry.entry_len * KvElementBytes(format);
      float* const scale = scales.data() + idx * num_scales;
      EncodeKvEntry(format, entry, values.data() + idx * entry.entry_len, at, scale);
      DecodeKvEntry(format, entry, at, scale, decoded.data() + idx * entry.entry_len);
    }
  }
};

TEST(AttendRow, OfStoredEntriesIsBitwiseThatOfTheFloatsTheyAreDecodedTo) {
  ForEachTarget([] {
    Random random(36);
    for (const KvEntryPlan& entry :
         {KvEntryPlan{256, 256, 256, 512}, {512, 128, 512, 640}, {37, 37, 37, 74}}) {
      for (const KvFormat format : {KvFormat::kBF16, KvFormat::kInt8, KvFormat::kFp8}) {
        for (const int num_heads : {1, 3, 8}) {
          for (const int64_t num_keys : {1, 64, 150}) {
            const StoredKeys keys(format, entry, random.Vector(num_keys * entry.entry_len));
            const std::vector<float> q = random.Vector(num_heads * entry.key_len, 0.1f);
            // In two places, as a page and the step's own entries are.
            const int64_t first = num_keys / 3;
            const KeySegment stored[] = {
                {keys.codes.data(), entry.entry_len, first, keys.scales.data()},
                {keys.codes.data() + first * entry.entry_len * KvElementBytes(format),
                 entry.entry_len, num_keys - first,
                 keys.scales.data() + first * NumKvScales(format, entry)}};
            const KeySegment floats{keys.decoded.data(), entry.entry_len, num_keys};
            AttentionScratch scratch;
            std::vector<float> out(num_heads * entry.value_len);
            AttendRow(stored, entry, q.data(), num_heads, scratch, out.data(), format);
            ASSERT_EQ(out, Attend({entry, num_heads, num_keys}, {&floats, 1}, q))
                << KvFormatName(format) << ", keys " << num_keys;
          }
        }
      }
    }
  });
}

// Rows need not be neighbours, and what one of them does not see must not reach it, be it NaN.
TEST(AttendRows, DoNotSeeKeysOfTheOthers) {
  ForEachTarget([] {
    Random random(35);
    const KvEntryPlan entry{16, 16, 16, 32};
    std::vector<float> entries = random.Vector(90 * 32);
    std::fill_n(entries.begin(), 32, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(entries.begin() + 80 * 32, 10 * 32, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> q = random.Vector(4 * 16, 0.1f);
    std::vector<float> out(4 * 16);
    const int64_t ranges[][2] = {{0, 3}, {1, 4}, {70, 80}, {75, 90}};
    std::vector<AttentionRow> rows;
    for (int row = 0; row < 4; ++row) {
      rows.push_back({q.data() + row * 16, out.data() + row * 16, ranges[row][0], ranges[row][1]});
    }
    const KeySegment segment{entries.data(), 32, 90};
    AttentionScratch scratch;
    AttendRows({&segment, 1}, entry, 1, rows, scratch);
    for (int row = 0; row < 4; ++row) {
      const bool sees_nan = row == 0 || row == 3;
      for (int dim = 0; dim < 16; ++dim)
        EXPECT_EQ(std::isnan(out[row * 16 + dim]), sees_nan) << row;
    }
  });
}

TEST(AttendRow, LargeScoresDoNotOverflow) {
  const KvEntryPlan entry{8, 8, 8, 16};
  std::vector<float> entries(3 * 16, 1.0f);
  for (int idx = 8; idx < 16; ++idx) entries[idx] = 1e4f;  // key 0 wins by far
  const std::vector<float> q(8, 1e4f);
  const KeySegment segment{entries.data(), 16, 3};
  for (const float value : Attend({entry, 1, 3}, {&segment, 1}, q)) EXPECT_EQ(value, 1.0f);
}

}  // namespace
}  // namespace lapidary::cpu
