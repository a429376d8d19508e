#include "kv/page_pool.h"

#include "base/check.h"

namespace lapidary {

PagePool::PagePool(int num_pages) : num_pages_(num_pages), is_allocated_(num_pages, false) {
  CHECK_GT(num_pages, 0);
  // Low pages first: a lightly loaded pool keeps touching the same memory.
  for (PageIndex page = num_pages - 1; page > kScratchPage; --page) free_.push_back(page);
}

PageIndex PagePool::Allocate() {
  if (free_.empty()) return kScratchPage;
  const PageIndex page = free_.back();
  free_.pop_back();
  is_allocated_[page] = true;
  return page;
}

void PagePool::Free(PageIndex page) {
  CHECK(page > kScratchPage && page < num_pages_ && is_allocated_[page]) << page;
  is_allocated_[page] = false;
  free_.push_back(page);
}

}  // namespace lapidary
