#include "kv/sequence_pages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lapidary {

SequencePages::SequencePages(const ModelPlan& plan, const KvLayout& layout, PagePool& pool)
    : plan_(&plan), layout_(&layout), pool_(&pool) {}

SequencePages::SequencePages(SequencePages&& other) noexcept
    : plan_(other.plan_),
      layout_(other.layout_),
      pool_(other.pool_),
      length_(std::exchange(other.length_, 0)),
      tables_(std::exchange(other.tables_, {})) {}

SequencePages::~SequencePages() { Release(); }

int32_t SequencePages::FirstBlockNeeded(int group_idx, int32_t length) const {
  const int window = plan_->kv_groups[group_idx].window;
  if (window == 0) return 0;
  // The next row, at position `length`, sees keys from length - window + 1 on.
  const int32_t first_key = std::max(0, length - window + 1);
  return first_key / layout_->tokens_per_page[group_idx];
}

int SequencePages::PagesNeeded(int32_t num_rows) const {
  int needed = 0;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    if (plan_->kv_groups[group_idx].layers.empty()) continue;
    const int tokens = layout_->tokens_per_page[group_idx];
    const int32_t end_block = (length_ + num_rows + tokens - 1) / tokens;
    const PageTable& table = tables_[group_idx];
    const int32_t begin_block =
        std::max(table.end_block(), FirstBlockNeeded(group_idx, length_ + num_rows));
    needed += std::max(0, end_block - begin_block);
  }
  return needed;
}

bool SequencePages::Reserve(int32_t num_rows) {
  if (PagesNeeded(num_rows) > pool_->num_free()) return false;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    if (plan_->kv_groups[group_idx].layers.empty()) continue;
    const int tokens = layout_->tokens_per_page[group_idx];
    const int32_t end_block = (length_ + num_rows + tokens - 1) / tokens;
    const int32_t first_needed = FirstBlockNeeded(group_idx, length_ + num_rows);
    PageTable& table = tables_[group_idx];
    if (table.pages.empty()) table.first_block = first_needed;
    while (table.end_block() < end_block) {
      // Blocks of a long chunk that will have left the window by its end are never written.
      const bool is_kept = table.end_block() >= first_needed;
      table.pages.push_back(is_kept ? pool_->Allocate() : kScratchPage);
    }
  }
  return true;
}

void SequencePages::Commit(int32_t num_rows) {
  length_ += num_rows;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    PageTable& table = tables_[group_idx];
    const int32_t gone =
        std::min<int32_t>(std::max(0, FirstBlockNeeded(group_idx, length_) - table.first_block),
                          static_cast<int32_t>(table.pages.size()));
    for (int32_t idx = 0; idx < gone; ++idx) {
      if (table.pages[idx] != kScratchPage) pool_->Free(table.pages[idx]);
    }
    table.pages.erase(table.pages.begin(), table.pages.begin() + gone);
    table.first_block += gone;
  }
}

void SequencePages::Release() {
  for (PageTable& table : tables_) {
    for (const PageIndex page : table.pages) {
      if (page != kScratchPage) pool_->Free(page);
    }
    table = {};
  }
  length_ = 0;
}

}  // namespace lapidary
