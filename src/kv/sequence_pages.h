// The pages of one sequence: which page holds which tokens, in both groups.
//
// The full group keeps every token. The sliding group keeps the last `window` tokens (what the next
// row may see) and gives pages back as they leave it.
//
//   Reserve(n)   pages for the rows [length, length + n): for the sliding group only those that the
//                sequence will still need afterwards, however long the chunk is
//   Commit(n)    the rows are in the cache: length grows, pages behind the window go back
#pragma once

#include <array>
#include <cstdint>
#include <deque>

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

class SequencePages {
 public:
  // `plan`, `layout` and `pool` must outlive the sequence.
  SequencePages(const ModelPlan& plan, const KvLayout& layout, PagePool& pool);
  ~SequencePages();
  SequencePages(SequencePages&&) noexcept;
  SequencePages& operator=(SequencePages&&) = delete;

  int32_t length() const { return length_; }
  const PageTable& table(int group_idx) const { return tables_[group_idx]; }

  // Pages that Reserve(num_rows) would take from the pool.
  int PagesNeeded(int32_t num_rows) const;

  // False, with nothing taken, when the pool has too few.
  [[nodiscard]] bool Reserve(int32_t num_rows);
  void Commit(int32_t num_rows);

  // Gives everything back; length becomes 0.
  void Release();

 private:
  // First block the sequence needs once it is `length` tokens long.
  int32_t FirstBlockNeeded(int group_idx, int32_t length) const;

  const ModelPlan* plan_;
  const KvLayout* layout_;
  PagePool* pool_;
  int32_t length_ = 0;
  std::array<PageTable, kNumKvGroups> tables_;
};

}  // namespace lapidary
