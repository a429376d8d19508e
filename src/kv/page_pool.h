// One pool of pages with reference counts. Integers only: who owns the memory is the executor's
// business.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/plan.h"

namespace lapidary {

using PageIndex = int32_t;

inline constexpr PageIndex kScratchPage = 0;

// Who holds a page: a sequence that needs it, or the prefix cache, which can let go of it.
enum class PageHolder { kSequence, kCache };

class PagePool {
 public:
  // Pages 1 .. num_pages - 1 are handed out; page 0 is scratch.
  explicit PagePool(int num_pages);

  int num_pages() const { return num_pages_; }
  int num_free() const { return static_cast<int>(free_.size()); }
  // Pages that would be free if the prefix cache let go of everything.
  int num_reclaimable() const { return num_reclaimable_; }
  // Pages of a group that sequences hold; those of the prefix cache alone do not count.
  int num_in_use(int group_idx) const { return num_in_use_[group_idx]; }
  int num_holders(PageIndex page) const {
    return holders_[page].num_sequences + holders_[page].num_caches;
  }

  // A page held by one sequence; kScratchPage when none is left.
  PageIndex Allocate(int group_idx = 0);
  // One more holder of an allocated page.
  void Share(PageIndex page, PageHolder holder = PageHolder::kSequence);
  // One holder less; the last one gives the page back.
  void Free(PageIndex page, PageHolder holder = PageHolder::kSequence);

 private:
  struct Holders {
    int32_t num_sequences = 0;
    int32_t num_caches = 0;
    int32_t group_idx = 0;
  };
  int32_t& Count(PageIndex page, PageHolder holder) {
    return holder == PageHolder::kSequence ? holders_[page].num_sequences
                                           : holders_[page].num_caches;
  }
  // Adds a holder or takes one away, and keeps the counts.
  void Change(PageIndex page, PageHolder holder, int difference);
  bool IsReclaimable(PageIndex page) const {
    return holders_[page].num_sequences == 0 && holders_[page].num_caches > 0;
  }

  int num_pages_;
  int num_reclaimable_ = 0;
  std::array<int, kNumKvGroups> num_in_use_{};
  std::vector<PageIndex> free_;
  std::vector<Holders> holders_;
};

}  // namespace lapidary
