#include "hub/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;

class FileLockTest : public testing::Test {
 protected:
  FileLockTest() {
    std::string name = testing::TempDir() + "lock-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~FileLockTest() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(FileLockTest, OneHolderAtATime) {
  const fs::path path = folder_ / "deep" / "x.lock";
  int num_waits = 0;
  const auto on_wait = [&] { ++num_waits; };
  const auto never = [] { return false; };
  EXPECT_FALSE(FileLock::IsHeld(path));
  {
    const auto lock = FileLock::Take(path, on_wait, never);
    ASSERT_TRUE(lock.ok()) << lock.error().message;
    EXPECT_TRUE(FileLock::IsHeld(path));
    // A second one waits, says so once, and gives up when told to.
    int num_asked = 0;
    const auto second = FileLock::Take(path, on_wait, [&] { return ++num_asked == 3; });
    EXPECT_FALSE(second.ok());
    EXPECT_EQ(num_waits, 1);
  }
  EXPECT_FALSE(FileLock::IsHeld(path));
  EXPECT_TRUE(FileLock::Take(path, on_wait, never).ok());
  EXPECT_EQ(num_waits, 1);
}

TEST_F(FileLockTest, AFileThatWasRemovedMeanwhileIsNoLock) {
  const fs::path path = folder_ / "x.lock";
  const auto nothing = [] {};
  const auto never = [] { return false; };
  const auto first = FileLock::Take(path, nothing, never);
  ASSERT_TRUE(first.ok());
  fs::remove(path);
  const auto second = FileLock::Take(path, nothing, never);
  EXPECT_TRUE(second.ok());
  EXPECT_TRUE(FileLock::IsHeld(path));
}

}  // namespace
}  // namespace lapidary::hub
