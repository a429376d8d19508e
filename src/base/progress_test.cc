#include "base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class ProgressTest : public testing::Test {
 protected:
  Progress Start(const std::string& label, int64_t total, Progress::Unit unit) {
    return Progress(label, total, unit, [this] { return now_; });
  }

  Progress::Clock::time_point now_;  // moves when the test says so
};

TEST_F(ProgressTest, PrintsNothingForWorkUnderASecond) {
  testing::internal::CaptureStderr();
  {
    Progress progress = Start("quick", 1000, Progress::Unit::kItems);
    now_ += milliseconds(999);
    for (int item = 0; item < 1000; ++item) progress.Advance(1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(ProgressTest, WritesALinePerTenthToALogOnceASecondHasPassed) {
  testing::internal::CaptureStderr();
  {
    Progress progress = Start("slow", 1000, Progress::Unit::kItems);
    now_ += milliseconds(2000);
    for (int item = 0; item < 1000; ++item) progress.Advance(1);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_THAT(text, HasSubstr("slow ["));
  EXPECT_THAT(text, HasSubstr(" 50% 500/1000, 250.0/s, 2 s left"));
  EXPECT_THAT(text, HasSubstr("100% 1000/1000"));
}

TEST_F(ProgressTest, AcceptsAnEmptyTotalAndMoreThanTheTotal) {
  testing::internal::CaptureStderr();
  {
    Progress progress = Start("odd", 0, Progress::Unit::kBytes);
    now_ += milliseconds(1010);
    progress.Advance(5);
    progress.Advance(5);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("100%"));
}

TEST_F(ProgressTest, WhatWasThereAlreadyIsNoSpeed) {
  testing::internal::CaptureStderr();
  {
    Progress progress = Start("rest", 4'000'000'000, Progress::Unit::kBytes);
    progress.Skip(3'000'000'000);
    now_ += milliseconds(10'000);
    progress.Advance(500'000'000);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(" 88% 3.50/4.00 GB, 50.0 MB/s, 10 s left"));
}

TEST_F(ProgressTest, LongTimesAreMinutesAndHours) {
  testing::internal::CaptureStderr();
  {
    Progress progress = Start("long", 100'000, Progress::Unit::kItems);
    now_ += milliseconds(100'000);
    progress.Advance(10'000);
    now_ += milliseconds(7'100'000);
    progress.Advance(50'000);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("100.0/s, 15 min left"));
  EXPECT_THAT(text, HasSubstr("8.3/s, 80 min left"));
}

}  // namespace
}  // namespace lapidary
