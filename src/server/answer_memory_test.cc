#include "server/answer_memory.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

constexpr size_t kMega = size_t{1} << 20;

// Clients that do not read, by name, and which of them were given up.
class AnswerMemoryTest : public testing::Test {
 protected:
  AnswerMemory::Key AddUnread(const std::string& name, size_t num_bytes) {
    const AnswerMemory::Key key = memory_->AddUnread([this, name] { given_up_.push_back(name); });
    memory_->ResizeUnread(key, num_bytes);
    return key;
  }

  const std::shared_ptr<AnswerMemory> memory_ = std::make_shared<AnswerMemory>(80 * kMega);
  std::vector<std::string> given_up_;
};

TEST_F(AnswerMemoryTest, TheClientThatHasWaitedLongestIsGivenUpFirst) {
  AddUnread("a", 30 * kMega);
  const AnswerMemory::Key b = AddUnread("b", 30 * kMega);
  EXPECT_TRUE(given_up_.empty());
  AddUnread("c", 30 * kMega);
  EXPECT_EQ(given_up_, (std::vector<std::string>{"a"}));
  EXPECT_EQ(memory_->stats().num_bytes, 60 * kMega);
  memory_->ResizeUnread(b, 10 * kMega);  // It reads, and so there is room.
  AddUnread("d", 30 * kMega);
  EXPECT_EQ(given_up_.size(), 1u);
  AddUnread("e", 30 * kMega);
  EXPECT_EQ(given_up_, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(memory_->stats().num_given_up, 3u);
  EXPECT_EQ(memory_->stats().num_unread, 2u);
}

TEST_F(AnswerMemoryTest, AnAnswerBeingMadeTakesTheMemoryOfUnreadOnes) {
  AddUnread("a", 40 * kMega);
  AddUnread("b", 10 * kMega);
  AnswerLease lease(memory_);
  EXPECT_TRUE(lease.Resize(20 * kMega));
  EXPECT_TRUE(given_up_.empty());
  EXPECT_TRUE(lease.Resize(60 * kMega));
  EXPECT_EQ(given_up_, (std::vector<std::string>{"a"}));
  EXPECT_EQ(memory_->stats().num_bytes, 70 * kMega);
}

TEST_F(AnswerMemoryTest, NobodyIsGivenUpForAnAnswerThatDoesNotFit) {
  AddUnread("a", 40 * kMega);
  AnswerLease first(memory_);
  ASSERT_TRUE(first.Resize(30 * kMega));
  AnswerLease second(memory_);
  EXPECT_FALSE(second.Resize(41 * kMega));
  EXPECT_EQ(second.Refusal(41 * kMega).status, 503);
  EXPECT_FALSE(second.Resize(71 * kMega));
  EXPECT_EQ(second.Refusal(71 * kMega).status, 400);
  EXPECT_EQ(second.Refusal(71 * kMega).code, "answer_too_large");
  EXPECT_TRUE(given_up_.empty());
  EXPECT_EQ(memory_->stats().num_refused, 2u);
}

TEST_F(AnswerMemoryTest, LargeAnswersLeaveRoomForSmallOnes) {
  AnswerLease large(memory_);
  ASSERT_TRUE(large.Resize(memory_->MaxOfOne()));
  AnswerLease small(memory_);
  EXPECT_FALSE(small.Resize(kMega));
  EXPECT_TRUE(small.Resize(kMega / 4));
}

TEST_F(AnswerMemoryTest, WhatGoesIsGivenBack) {
  {
    AnswerLease lease(memory_);
    ASSERT_TRUE(lease.Resize(50 * kMega));
    ASSERT_TRUE(lease.Resize(20 * kMega));
    EXPECT_EQ(memory_->stats().num_bytes, 20 * kMega);
    const AnswerMemory::Key key = AddUnread("a", kMega);
    memory_->RemoveUnread(key);
    memory_->ResizeUnread(key, kMega);
  }
  EXPECT_EQ(memory_->stats().num_bytes, 0u);
  EXPECT_EQ(memory_->stats().num_unread, 0u);
}

TEST_F(AnswerMemoryTest, TextIsLeasedAsItGrowsAndEndsWhereMemoryDoes) {
  AnswerLease lease(memory_);
  ASSERT_TRUE(lease.Resize(10 * kMega));
  AnswerText text(&lease);
  const std::string piece(kMega, 'x');
  for (int idx = 0; idx < 20; ++idx) text.Append(piece);
  ASSERT_TRUE(text.ok());
  EXPECT_GE(lease.num_bytes(), 30 * kMega);
  EXPECT_LE(lease.num_bytes(), 50 * kMega);
  for (int idx = 0; idx < 60; ++idx) text.Append(piece);
  EXPECT_FALSE(text.ok());
  EXPECT_EQ(text.Refusal().status, 400);
  EXPECT_LE(text.Take().size(), 70 * kMega);
}

}  // namespace
}  // namespace lapidary
