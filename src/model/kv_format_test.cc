#include "model/kv_format.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace lapidary {
namespace {

std::vector<std::pair<int, int>> Groups(const KvEntryPlan& entry) {
  std::vector<std::pair<int, int>> groups;
  ForEachScaleGroup(entry, [&](int first, int count) { groups.emplace_back(first, count); });
  return groups;
}

using Pairs = std::vector<std::pair<int, int>>;

TEST(KvFormat, GroupsOfAScaleDoNotCrossPartsOfAnEntry) {
  EXPECT_EQ(Groups({256, 256, 256, 512}), (Pairs{{0, 128}, {128, 128}, {256, 128}, {384, 128}}));
  // K is V: rotary part of V, the rest, rotary part of K.
  EXPECT_EQ(Groups({512, 128, 512, 640}),
            (Pairs{{0, 128}, {128, 128}, {256, 128}, {384, 128}, {512, 128}}));
  EXPECT_EQ(Groups({200, 200, 200, 400}), (Pairs{{0, 128}, {128, 72}, {200, 128}, {328, 72}}));
  EXPECT_EQ(Groups({6, 2, 6, 8}), (Pairs{{0, 2}, {2, 4}, {6, 2}}));
}

TEST(KvFormat, AnEntryWhereKIsVTakesAtMost784Bytes) {
  constexpr KvEntryPlan kEntry{512, 128, 512, 640};
  EXPECT_EQ(KvEntryBytes(KvFormat::kBF16, kEntry), 1280);
  EXPECT_EQ(KvEntryBytes(KvFormat::kInt8, kEntry), 660);
  EXPECT_EQ(KvEntryBytes(KvFormat::kFp8, kEntry), 660);
}

TEST(KvFormat, NamesAreThoseOfItsFlag) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8, KvFormat::kFp8}) {
    const auto parsed = ParseKvFormat(KvFormatName(format));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, format);
  }
  EXPECT_EQ(ParseKvFormat("fp8_e4m3").value(), KvFormat::kFp8);
  const auto unknown = ParseKvFormat("fp8_e5m2");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("int8"), std::string::npos);
}

}  // namespace
}  // namespace lapidary
