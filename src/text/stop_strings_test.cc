#include "text/stop_strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace lapidary {
namespace {

struct Outcome {
  std::string text;
  int match = -1;
};

// The naive search: at every end of a prefix of the text, try every string.
Outcome SearchWholeText(const std::string& text, const std::vector<std::string>& strings,
                        bool include_stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t index = 0; index < strings.size(); ++index) {
      const std::string& stop = strings[index];
      if (stop.size() > end || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      if (best < 0 || stop.size() > strings[best].size()) best = static_cast<int>(index);
    }
    if (best >= 0) return {text.substr(0, include_stop ? end : end - strings[best].size()), best};
  }
  return {text, -1};
}

Outcome Stream(StopStrings stop, const std::vector<std::string>& pieces) {
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += stop.Push(piece);
  outcome.text += stop.Finish();
  outcome.match = stop.match_index();
  return outcome;
}

TEST(StopStrings, EverySplitGivesTheResultOfTheWholeText) {
  std::mt19937 random(17);
  const auto random_text = [&](size_t max_bytes) {
    std::string text(random() % (max_bytes + 1), ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  int num_matched = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<std::string> strings;
    for (size_t count = random() % 4; strings.size() < count;) {
      std::string stop = random_text(6);
      if (!stop.empty()) strings.push_back(stop);
    }
    const std::string text = random_text(40);
    const bool include_stop = random() % 2 == 0;
    const Outcome expected = SearchWholeText(text, strings, include_stop);
    std::vector<std::string> pieces;
    for (size_t begin = 0; begin < text.size();) {
      const size_t length = random() % 7;  // Empty pieces as well.
      pieces.push_back(text.substr(begin, length));
      begin += length;
    }
    const Outcome got = Stream(StopStrings::Create(strings, include_stop).value(), pieces);
    ASSERT_EQ(got.text, expected.text) << "trial " << trial;
    ASSERT_EQ(got.match, expected.match) << "trial " << trial;
    num_matched += got.match >= 0;
  }
  EXPECT_GT(num_matched, 5000);
}

TEST(StopStrings, HoldsBackExactlyTheTailThatMayBeginAMatch) {
  StopStrings stop = StopStrings::Create({"<end>", "\n\n"}).value();
  EXPECT_EQ(stop.Push("text <"), "text ");
  EXPECT_EQ(stop.Push("en"), "");
  EXPECT_EQ(stop.Push("t> a\n"), "<ent> a");
  EXPECT_EQ(stop.Push("b"), "\nb");
  EXPECT_FALSE(stop.matched());
  EXPECT_EQ(stop.Push("c\n\nnever sent"), "c");
  EXPECT_TRUE(stop.matched());
  EXPECT_EQ(stop.match_index(), 1);
  EXPECT_EQ(stop.Push("nor this"), "");
  EXPECT_EQ(stop.Finish(), "");
}

TEST(StopStrings, FinishReleasesAnIncompleteMatch) {
  StopStrings stop = StopStrings::Create({"stop"}).value();
  EXPECT_EQ(stop.Push("full sto"), "full ");
  EXPECT_EQ(stop.Finish(), "sto");
  EXPECT_EQ(stop.Finish(), "");
}

TEST(StopStrings, NeverCutsACharacter) {
  StopStrings stop = StopStrings::Create({"é→é", "→e!", "è"}).value();
  std::string sent;
  for (const char* character : {"h", "é", "é", "→", "e", "é", "→", "n"}) {
    const std::string piece = stop.Push(character);
    if (!piece.empty()) {
      EXPECT_NE(static_cast<uint8_t>(piece[0]) & 0xc0, 0x80) << "starts inside a character";
    }
    sent += piece;
  }
  EXPECT_EQ(sent + stop.Finish(), "héé→eé→n");
}

TEST(StopStrings, IncludeStopKeepsTheMatch) {
  EXPECT_EQ(Stream(StopStrings::Create({"END"}, true).value(), {"the E", "ND of"}).text, "the END");
  EXPECT_EQ(Stream(StopStrings::Create({"END"}).value(), {"the E", "ND of"}).text, "the ");
}

TEST(StopStrings, WithoutStringsEverythingPasses) {
  EXPECT_EQ(Stream(StopStrings(), {"a", "", "b\n\n"}).text,
            "a"
            "b\n\n");
  EXPECT_EQ(Stream(StopStrings::Create({}).value(), {"ab"}).match, -1);
}

TEST(StopStrings, LongSelfOverlappingStringsStayLinear) {
  const std::string stop_text = std::string(kMaxStopStringBytes - 1, 'a') + "b";
  StopStrings stop = StopStrings::Create({stop_text}).value();
  size_t num_sent = 0;
  for (int piece = 0; piece < 1 << 20; ++piece) num_sent += stop.Push("a").size();
  EXPECT_EQ(num_sent, (1u << 20) - (kMaxStopStringBytes - 1));
  stop.Push("b");
  EXPECT_TRUE(stop.matched());
}

TEST(StopStrings, RefusesEmptyTooLongAndTooMany) {
  EXPECT_THAT(StopStrings::Create({"a", ""}).error().message, testing::HasSubstr("is empty"));
  EXPECT_FALSE(StopStrings::Create({std::string(kMaxStopStringBytes + 1, 'x')}).ok());
  EXPECT_TRUE(StopStrings::Create({std::string(kMaxStopStringBytes, 'x')}).ok());
  EXPECT_FALSE(StopStrings::Create(std::vector<std::string>(kMaxStopStrings + 1, "x")).ok());
  EXPECT_TRUE(StopStrings::Create(std::vector<std::string>(kMaxStopStrings, "x")).ok());
}

}  // namespace
}  // namespace lapidary
