#include "server/input_items.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

constexpr std::string_view kItems = R"([{"id": "a"}, {"id": "b"}, {"id": "c"}])";

std::string IdsOf(std::string_view query) {
  OrderedJson list;
  if (const ApiStatus error = ListInputItems(kItems, query, &list)) return error->param;
  std::string ids;
  for (const OrderedJson& item : list["data"]) ids += item["id"].get<std::string>();
  if (!ids.empty()) {
    EXPECT_EQ(list["first_id"], ids.substr(0, 1));
    EXPECT_EQ(list["last_id"], ids.substr(ids.size() - 1));
  }
  return list["has_more"] == true ? ids + "..." : ids;
}

TEST(InputItems, PagesGoOnBehindTheLastItem) {
  EXPECT_EQ(IdsOf(""), "cba");
  EXPECT_EQ(IdsOf("order=asc"), "abc");
  EXPECT_EQ(IdsOf("order=asc&limit=2"), "ab...");
  EXPECT_EQ(IdsOf("order=asc&limit=2&after=b"), "c");
  EXPECT_EQ(IdsOf("after=a&limit=2&unknown"), "");
}

TEST(InputItems, WrongPagesAreRefusedByName) {
  EXPECT_EQ(IdsOf("limit=0"), "limit");
  EXPECT_EQ(IdsOf("limit=two"), "limit");
  EXPECT_EQ(IdsOf("order=up"), "order");
  EXPECT_EQ(IdsOf("after=z"), "after");
}

}  // namespace
}  // namespace lapidary
