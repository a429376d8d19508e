#include "base/memory_limit.h"

#include <gtest/gtest.h>

#include <fstream>

namespace lapidary {
namespace {

namespace fs = std::filesystem;

class MemoryLimitTest : public testing::Test {
 protected:
  MemoryLimitTest() : root_(fs::path(testing::TempDir()) / "memory_limit") {
    fs::remove_all(root_);
    Write("proc/self/cgroup", "0::/system.slice/lapidary.service\n");
  }
  ~MemoryLimitTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  const fs::path root_;
};

TEST_F(MemoryLimitTest, IsThatOfTheGroupOrOfOneAroundIt) {
  const int64_t machine = MemoryLimit(root_);
  EXPECT_GT(machine, 0);
  Write("sys/fs/cgroup/system.slice/lapidary.service/memory.max", "max\n");
  EXPECT_EQ(MemoryLimit(root_), machine);
  Write("sys/fs/cgroup/system.slice/memory.max", "40000000\n");
  EXPECT_EQ(MemoryLimit(root_), 40'000'000);
  Write("sys/fs/cgroup/system.slice/lapidary.service/memory.max", "30000000\n");
  EXPECT_EQ(MemoryLimit(root_), 30'000'000);
  Write("sys/fs/cgroup/memory.max", "20000000\n");  // of a container
  EXPECT_EQ(MemoryLimit(root_), 20'000'000);
}

TEST_F(MemoryLimitTest, NoGroupIsNoLimit) {
  fs::remove(root_ / "proc/self/cgroup");
  EXPECT_GT(MemoryLimit(root_), 0);
}

}  // namespace
}  // namespace lapidary
