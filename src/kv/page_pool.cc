#include "kv/page_pool.h"

#include "base/check.h"

namespace lapidary {

PagePool::PagePool(int num_pages) : num_pages_(num_pages), pages_(num_pages), order_(num_pages) {
  CHECK_GT(num_pages, 0);
  // Low pages first: a lightly loaded pool keeps touching the same memory.
  for (PageIndex page = num_pages - 1; page > kScratchPage; --page) free_.push_back(page);
}

PageIndex PagePool::Allocate(int group_idx) {
  if (free_.empty()) return kScratchPage;
  const PageIndex page = free_.back();
  free_.pop_back();
  pages_[page] = {.num_sequences = 1, .group_idx = static_cast<int8_t>(group_idx)};
  ++num_in_use_[group_idx];
  return page;
}

void PagePool::AddReclaimable(PageIndex page) {
  order_.Set(page, std::max(pages_[page].last_use, pages_[page].claim));
  ++num_reclaimable_[pages_[page].group_idx];
}

void PagePool::RemoveReclaimable(PageIndex page) {
  order_.Remove(page);
  --num_reclaimable_[pages_[page].group_idx];
}

void PagePool::Share(PageIndex page) {
  CHECK(page > kScratchPage && page < num_pages_) << page;
  Page& shared = pages_[page];
  CHECK(shared.num_sequences > 0 || shared.is_kept) << page;
  if (shared.num_sequences++ > 0) return;
  RemoveReclaimable(page);
  ++num_in_use_[shared.group_idx];
}

void PagePool::Free(PageIndex page, PageWorth worth) {
  CHECK(page > kScratchPage && page < num_pages_ && pages_[page].num_sequences > 0) << page;
  Page& freed = pages_[page];
  if (--freed.num_sequences > 0) return;
  --num_in_use_[freed.group_idx];
  if (!freed.is_kept) {
    free_.push_back(page);
    return;
  }
  freed.last_use = KeyNow(worth);
  AddReclaimable(page);
}

void PagePool::Keep(PageIndex page) {
  CHECK(page > kScratchPage && page < num_pages_) << page;
  CHECK(pages_[page].num_sequences > 0 && !pages_[page].is_kept) << page;
  pages_[page].is_kept = true;
  ++num_ever_kept_;
}

void PagePool::Drop(PageIndex page) {
  CHECK(page > kScratchPage && page < num_pages_ && pages_[page].is_kept) << page;
  Page& dropped = pages_[page];
  dropped.is_kept = false;
  dropped.is_overwritten = false;
  dropped.claim = 0;
  if (dropped.num_sequences > 0) return;
  RemoveReclaimable(page);
  free_.push_back(page);
}

void PagePool::SetClaim(PageIndex page, EvictionKey claim) {
  CHECK(pages_[page].is_kept) << page;
  pages_[page].claim = claim;
  if (order_.contains(page)) order_.Set(page, std::max(pages_[page].last_use, claim));
}

}  // namespace lapidary
