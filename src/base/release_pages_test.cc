#include "base/release_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
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

TEST(ReleasePages, WhatTheAllocatorKeepsIsCountedAndGivenBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has an allocator of its own";
#endif
  const auto resident = [] {
    long num_pages = 0;
    long num_resident = 0;
    std::ifstream("/proc/self/statm") >> num_pages >> num_resident;
    return num_resident * sysconf(_SC_PAGESIZE);
  };
  // Small, so that they are not mappings of their own, and every 64th stays.
  constexpr size_t kBlockBytes = 4000;
  constexpr size_t kNumBlocks = 10'000;
  std::vector<std::vector<char>> blocks(kNumBlocks);
  for (auto& block : blocks) block.assign(kBlockBytes, 1);
  for (size_t idx = 0; idx < kNumBlocks; ++idx) {
    if (idx % 64 != 0) std::vector<char>().swap(blocks[idx]);
  }
  const size_t num_free = FreeHeapBytes();
  EXPECT_GT(num_free, kNumBlocks * kBlockBytes / 2);
  const long before = resident();
  ReleaseFreeHeap();
  EXPECT_LT(resident(), before - static_cast<long>(num_free / 2));
}

}  // namespace
}  // namespace lapidary
