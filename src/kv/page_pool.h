// The free list of one pool of pages. Integers only: who owns the memory is the executor's
// business.
#pragma once

#include <cstdint>
#include <vector>

namespace lapidary {

using PageIndex = int32_t;

inline constexpr PageIndex kScratchPage = 0;

class PagePool {
 public:
  // Pages 1 .. num_pages - 1 are handed out; page 0 is scratch.
  explicit PagePool(int num_pages);

  int num_pages() const { return num_pages_; }
  int num_free() const { return static_cast<int>(free_.size()); }

  // kScratchPage when none is left.
  PageIndex Allocate();
  void Free(PageIndex page);

 private:
  int num_pages_;
  std::vector<PageIndex> free_;
  std::vector<bool> is_allocated_;
};

}  // namespace lapidary
