// One pool of pages: who needs each of them, and which would be given up first. Integers only: who
// owns the memory is the executor's business.
//
//   free  --Allocate-->  held by sequences  --last Free-->  free,
//                                                           or kept by the prefix cache until Drop
//
// A kept page that no sequence holds is reclaimable: it counts as room. Pages go in the order of
// their keys. A key is the time of the last use, set back for a page that a sequence merely went
// past, or set ahead by a claim of the prefix cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kv/eviction_order.h"
#include "model/plan.h"

namespace lapidary {

using PageIndex = int32_t;

inline constexpr PageIndex kScratchPage = 0;

// What a page may be worth to other prompts when a sequence lets go of it.
enum class PageWorth {
  kPassing,  // the sequence went past it: kept only in room that nothing else could use
  kEnd,      // near the end of a prompt or of a sequence, where others part from it
};

// The lower, the earlier a page goes.
using EvictionKey = int64_t;

class PagePool {
 public:
  // Pages 1 .. num_pages - 1 are handed out; page 0 is scratch.
  explicit PagePool(int num_pages);

  int num_pages() const { return num_pages_; }
  int num_free() const { return static_cast<int>(free_.size()); }
  // Pages that would be free if the prefix cache let go of everything.
  int num_reclaimable() const { return order_.size(); }
  // Pages of a group that only the prefix cache has.
  int num_reclaimable(int group_idx) const { return num_reclaimable_[group_idx]; }
  // Pages of a group that sequences hold.
  int num_in_use(int group_idx) const { return num_in_use_[group_idx]; }
  int num_sequences(PageIndex page) const { return pages_[page].num_sequences; }
  bool is_kept(PageIndex page) const { return pages_[page].is_kept; }

  // A page held by one sequence; kScratchPage when none is free.
  PageIndex Allocate(int group_idx = 0);
  // One more sequence needs a page that is held or kept.
  void Share(PageIndex page);
  // One less; the last one gives the page back, or leaves it to the prefix cache.
  void Free(PageIndex page, PageWorth worth = PageWorth::kEnd);

  // The prefix cache keeps a page that a sequence holds, and gives it up again.
  void Keep(PageIndex page);
  void Drop(PageIndex page);

  // Rows of the step being planned may overwrite the page: no sequence may go on from it.
  void MarkOverwritten(PageIndex page, bool is_overwritten) {
    pages_[page].is_overwritten = is_overwritten;
  }
  bool is_overwritten(PageIndex page) const { return pages_[page].is_overwritten; }

  // A kept page goes as if it had been used at `claim`, if that is later than its last use.
  void SetClaim(PageIndex page, EvictionKey claim);
  EvictionKey claim(PageIndex page) const { return pages_[page].claim; }
  // As if used when so many more pages have been kept: a claimed page outlives some turnovers of
  // the pool.
  EvictionKey NextClaim() {
    return KeyNow(PageWorth::kEnd) + (kClaimTurnovers * num_pages_ << kKeptShift);
  }

  // Of the reclaimable page that goes first; only if there is one.
  PageIndex FirstToGo() const { return order_.first(); }
  EvictionKey FirstKey() const { return order_.key(order_.first()); }
  // The key of a kept page that would become reclaimable now.
  EvictionKey KeyIfFreed(PageIndex page, PageWorth worth) {
    return std::max(KeyNow(worth), pages_[page].claim);
  }
  // Keys are times, each given once: pages kept so far, and uses between two of them.
  EvictionKey KeyNow(PageWorth worth) {
    clock_ = std::max(clock_ + 1, num_ever_kept_ << kKeptShift);
    return clock_ + (worth == PageWorth::kEnd ? kEndsFirstKey : 0);
  }

 private:
  // All pages of worth kEnd go after all that were merely passed.
  static constexpr EvictionKey kEndsFirstKey = EvictionKey{1} << 60;
  static constexpr int64_t kClaimTurnovers = 4;
  static constexpr int kKeptShift = 20;

  struct Page {
    int32_t num_sequences = 0;
    int8_t group_idx = 0;
    bool is_kept = false;
    bool is_overwritten = false;
    EvictionKey last_use = 0;  // while no sequence holds it
    EvictionKey claim = 0;
  };
  void AddReclaimable(PageIndex page);
  void RemoveReclaimable(PageIndex page);

  int num_pages_;
  int64_t num_ever_kept_ = 0;
  int64_t clock_ = 0;
  std::array<int, kNumKvGroups> num_in_use_{};
  std::array<int, kNumKvGroups> num_reclaimable_{};
  std::vector<PageIndex> free_;
  std::vector<Page> pages_;
  EvictionOrder order_;  // of reclaimable pages
};

}  // namespace lapidary
