#include "base/release_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace lapidary {
namespace {

TEST(ReleasePages, GivesBackWholePagesAndLeavesTheRest) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = 8 * page;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* data = static_cast<unsigned char*>(memory);
  std::fill_n(data, bytes, 7);
  ReleasePages(data + 1, bytes - 2);
  std::vector<unsigned char> resident(8);
  ASSERT_EQ(mincore(memory, bytes, resident.data()), 0);
  for (size_t idx = 0; idx < 8; ++idx) {
    EXPECT_EQ(resident[idx] & 1, idx == 0 || idx == 7) << idx;
  }
  EXPECT_EQ(data[page - 1], 7);
  EXPECT_EQ(data[7 * page], 7);
  ReleasePages(data + 1, page - 2);  // no whole page
  EXPECT_EQ(data[1], 7);
  munmap(memory, bytes);
}

}  // namespace
}  // namespace lapidary
