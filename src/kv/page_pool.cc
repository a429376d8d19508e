#include "kv/page_pool.h"

#include "base/check.h"

namespace lapidary {

PagePool::PagePool(int num_pages) : num_pages_(num_pages), holders_(num_pages) {
  CHECK_GT(num_pages, 0);
  // Low pages first: a lightly loaded pool keeps touching the same memory.
  for (PageIndex page = num_pages - 1; page > kScratchPage; --page) free_.push_back(page);
}

PageIndex PagePool::Allocate(int group_idx) {
  if (free_.empty()) return kScratchPage;
  const PageIndex page = free_.back();
  free_.pop_back();
  holders_[page].num_sequences = 1;
  holders_[page].group_idx = group_idx;
  ++num_in_use_[group_idx];
  return page;
}

void PagePool::Change(PageIndex page, PageHolder holder, int difference) {
  int& num_in_use = num_in_use_[holders_[page].group_idx];
  num_reclaimable_ -= IsReclaimable(page);
  num_in_use -= holders_[page].num_sequences > 0;
  Count(page, holder) += difference;
  num_in_use += holders_[page].num_sequences > 0;
  num_reclaimable_ += IsReclaimable(page);
}

void PagePool::Share(PageIndex page, PageHolder holder) {
  CHECK(page > kScratchPage && page < num_pages_ && num_holders(page) > 0) << page;
  Change(page, holder, 1);
}

void PagePool::Free(PageIndex page, PageHolder holder) {
  CHECK(page > kScratchPage && page < num_pages_ && Count(page, holder) > 0) << page;
  Change(page, holder, -1);
  if (num_holders(page) == 0) free_.push_back(page);
}

}  // namespace lapidary
