#include "front/video_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(VideoTextTest, FewFramesAreAllShownAndManyAreEvenlySpread) {
  EXPECT_THAT(ChooseVideoFrames(3), testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(ChooseVideoFrames(32).back(), 31);
  const std::vector<int> of_many = ChooseVideoFrames(100);
  ASSERT_EQ(of_many.size(), size_t{32});
  for (int i = 0; i < 32; ++i) EXPECT_EQ(of_many[i], i * 100 / 32);
}

TEST(VideoTextTest, TimesAreMinutesAndWholeSeconds) {
  EXPECT_EQ(VideoText(std::vector<double>{0.0, 1.99, 61.0, 6000.5}),
            "00:00 <|image|> 00:01 <|image|> 01:01 <|image|> 100:00 <|image|>");
}

TEST(VideoTextTest, OnlyTheTemplatesOwnPlaceholdersAreReplaced) {
  std::vector<TextSegment> segments = {
      {"user\n<|video|>", true}, {"What is <|video|>?", false}, {"<|video|>", true}};
  const std::vector<std::string> texts = {"00:00 <|image|>", "<|video|>"};
  ASSERT_TRUE(ReplaceVideoPlaceholders(texts, &segments).ok());
  EXPECT_EQ(segments[0].text, "user\n00:00 <|image|>");
  EXPECT_EQ(segments[1].text, "What is <|video|>?");
  EXPECT_EQ(segments[2].text, "<|video|>");
}

TEST(VideoTextTest, ATemplateThatWritesNoPlaceholderIsNamed) {
  std::vector<TextSegment> segments = {{"user\n", true}};
  const Status status = ReplaceVideoPlaceholders(std::vector<std::string>{"00:00 "}, &segments);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "the chat template wrote 0 of <|video|> for 1 videos");
}

}  // namespace
}  // namespace lapidary
