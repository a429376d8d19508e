#include "server/limited_warning.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(LimitedWarningTest, IsSaidAtOnceAndThenOnceInAWhileWithACount) {
  LimitedWarning warning;
  const LimitedWarning::Clock::time_point start{};
  EXPECT_EQ(warning.Next("no more files", start), "no more files");
  for (int tenths = 1; tenths < 100; ++tenths) {
    EXPECT_EQ(warning.Next("no more files", start + std::chrono::milliseconds(100 * tenths)),
              std::nullopt);
  }
  EXPECT_EQ(warning.Next("no more files", start + LimitedWarning::kInterval),
            "no more files (99 more since the last such line)");
  EXPECT_EQ(warning.Next("no more files", start + 3 * LimitedWarning::kInterval), "no more files");
}

}  // namespace
}  // namespace lapidary
