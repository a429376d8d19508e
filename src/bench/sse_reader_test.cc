#include "bench/sse_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace lapidary::bench {
namespace {

using Events = std::vector<std::string>;

Events Read(std::string_view text, size_t piece) {
  SseReader reader;
  Events events;
  const auto sink = [&](std::string_view data) -> Status {
    events.emplace_back(data);
    return {};
  };
  for (size_t begin = 0; begin < text.size(); begin += piece) {
    EXPECT_TRUE(reader.Feed(text.substr(begin, piece), sink).ok());
  }
  EXPECT_TRUE(reader.Finish(sink).ok());
  return events;
}

TEST(SseReader, CutsAnywhereGiveTheSameEvents) {
  const std::string text =
      ": ping\n\ndata: {\"a\":1}\n\nevent: x\ndata:two\r\n\r\ndata: 3\rdata: 4\r\rid: 7\n\n"
      "data: [DONE]\n\n";
  const Events expected = {"{\"a\":1}", "two", "3\n4", "[DONE]"};
  for (size_t piece = 1; piece <= text.size(); ++piece) EXPECT_EQ(Read(text, piece), expected);
}

TEST(SseReader, TheLastEventNeedsNoEmptyLine) {
  EXPECT_EQ(Read("data: a\n\ndata: b", 3), (Events{"a", "b"}));
  EXPECT_EQ(Read("data: a\n\ndata: b\n", 3), (Events{"a", "b"}));
}

TEST(SseReader, EmptyDataIsAnEventAndOtherFieldsAreNot) {
  EXPECT_EQ(Read("data\n\ndatabase: x\n\ndata:\n\n", 4), (Events{"", ""}));
}

TEST(SseReader, StopsAtTheSinksError) {
  SseReader reader;
  int num_events = 0;
  const auto status = reader.Feed("data: a\n\ndata: b\n\n", [&](std::string_view) -> Status {
    ++num_events;
    return MakeError("enough");
  });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(num_events, 1);
}

}  // namespace
}  // namespace lapidary::bench
