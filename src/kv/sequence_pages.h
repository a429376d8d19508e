// The pages of one sequence: which page holds which tokens, in both groups.
//
// The full group keeps every token. The sliding group keeps what the next row may see (the last
// window - 1 tokens) and `slack` more, for drafts to be taken back and snapshots to be taken a
// little late; it gives pages back as they leave that range. A block of tokens is written by its
// sequence alone: pages taken over from a snapshot are shared where they are full and copied where
// they are not.
//
//      0 ........ length - window - slack ........ length - 1 | length ..... length + n
//      full group: every block has a page                     | Reserve(n) adds pages for these
//      rows sliding:    given back      | kept                     | (or takes over leaving ones),
//      and Commit(n) makes them the past
//
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_layout.h"
#include "kv/page_pool.h"

namespace lapidary {

// page of block b = pages[b - first_block]; block b holds tokens [b * T, (b + 1) * T).
struct PageTable {
  int32_t first_block = 0;
  std::vector<PageIndex> pages;

  int32_t end_block() const { return first_block + static_cast<int32_t>(pages.size()); }
  bool Contains(int32_t block) const { return block >= first_block && block < end_block(); }
  PageIndex PageOf(int32_t block) const { return pages[block - first_block]; }
};

using PageTables = std::array<PageTable, kNumKvGroups>;

// An order to the executor: the contents of one page to another, before anything else in the step.
struct PageCopy {
  PageIndex from = kScratchPage;
  PageIndex to = kScratchPage;
};

class SequencePages {
 public:
  // `plan`, `layout` and `pool` must outlive the sequence.
  SequencePages(const ModelPlan& plan, const KvLayout& layout, PagePool& pool, int32_t slack = 0);
  ~SequencePages();
  SequencePages(SequencePages&&) noexcept;
  SequencePages& operator=(SequencePages&&) = delete;

  int32_t length() const { return length_; }
  const PageTable& table(int group_idx) const { return tables_[group_idx]; }
  const PageTables& tables() const { return tables_; }

  // Pages that Reserve(num_rows) would take from the pool.
  int PagesNeeded(int32_t num_rows) const;

  // False, with nothing taken, when the pool has too few. May be called again for more rows.
  [[nodiscard]] bool Reserve(int32_t num_rows);
  // The first `num_rows` reserved rows are in the cache, all of them but at most `slack`; pages
  // reserved beyond them stay.
  void Commit(int32_t num_rows);

  // Shares the pages that hold the first `length` tokens as a sequence resumed there would need
  // them; nothing when the sliding group no longer has them all. The caller becomes a holder of
  // each page.
  bool TakeSnapshot(int32_t length, PageTables& snapshot) const;

  // Starts this (empty) sequence at `length` from a snapshot: full blocks are shared, the block
  // that `length` cuts is copied. False, with nothing taken, when the pool has no page for a copy.
  [[nodiscard]] bool Resume(int32_t length, const PageTables& snapshot,
                            std::vector<PageCopy>& copies);
  // Pages Resume takes from the pool.
  int PagesToResume(int32_t length) const;

  // Gives everything back; length becomes 0.
  void Release();

 private:
  // Pages of blocks that a step of num_rows is the last to read: its own new blocks may take them
  // over, since an executor reads a layer's old entries before it writes new ones. So however long
  // a chunk, the sliding group never holds more than window + slack tokens (and a page at either
  // end).
  int32_t NumReusable(int group_idx, int32_t num_rows) const;
  // Behind the last such block.
  int32_t EndReusable(int group_idx, int32_t num_rows) const;
  // First block the sequence needs once it is `length` tokens long.
  int32_t FirstBlockNeeded(int group_idx, int32_t length, int32_t slack) const;
  bool GroupIsUsed(int group_idx) const { return !plan_->kv_groups[group_idx].layers.empty(); }

  const ModelPlan* plan_;
  const KvLayout* layout_;
  PagePool* pool_;
  int32_t slack_;
  int32_t length_ = 0;
  PageTables tables_;
  std::array<int32_t, kNumKvGroups> end_taken_over_{};  // by Reserve, until Commit drops them
};

}  // namespace lapidary
