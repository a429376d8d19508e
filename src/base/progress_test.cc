#include "base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace lapidary {
namespace {

TEST(Progress, PrintsNothingForWorkUnderASecond) {
  testing::internal::CaptureStderr();
  {
    Progress progress("quick", 1000, Progress::Unit::kItems);
    for (int item = 0; item < 1000; ++item) progress.Advance(1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Progress, WritesALinePerTenthToALogOnceASecondHasPassed) {
  testing::internal::CaptureStderr();
  {
    Progress progress("slow", 1000, Progress::Unit::kItems);
    std::this_thread::sleep_for(std::chrono::milliseconds(1050));
    for (int item = 0; item < 1000; ++item) progress.Advance(1);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_THAT(text, testing::HasSubstr("slow ["));
  EXPECT_THAT(text, testing::HasSubstr("100% 1000/1000"));
}

TEST(Progress, AcceptsAnEmptyTotalAndMoreThanTheTotal) {
  testing::internal::CaptureStderr();
  {
    Progress progress("odd", 0, Progress::Unit::kBytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(1010));
    progress.Advance(5);
    progress.Advance(5);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("100%"));
}

}  // namespace
}  // namespace lapidary
