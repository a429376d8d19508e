// The pages of one sequence: which page holds which tokens, in both groups.
//
// The full group keeps every token. The sliding group needs what the next row may see (the last
// window - 1 tokens) and `slack` more, so that drafts can be taken back; it gives pages back as
// they leave that range, to the prefix cache if that keeps them. A block of tokens is written by
// its sequence alone: pages taken over from another are shared where they are full and copied where
// they are not.
//
//   0 ..... length - window - slack ..... length | .. max_length | .. max_length + n
//   full:    every block has a page              | drafts not    | Reserve(n) adds pages for these
//   sliding: given back      | held              | settled yet   | rows (or takes over leaving
//   ones)
//
// Commit(n) makes rows the past. Of a step with drafts it is not known at once how many rows count:
// `length` then grows by the sure ones, `max_length` by all, and Settle() closes the gap. Pages
// leave the window by `length`, so rejected drafts never cost an entry that is still needed.
//
// Reserve takes as few pages as will do: rows that will have left the window at the step's end get
// none, and pages that leave it are written anew. KeepLeaving then spends what room is left on
// both.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
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

// An entry of the page table that an executor keeps for a slot.
struct PageTableEntry {
  int32_t slot = 0;
  int32_t group_idx = 0;
  int32_t block = 0;
  PageIndex page = kScratchPage;  // scratch: rows of this block are not kept
};

// An order to the executor: the contents of one page to another, before any row of the step.
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

  int32_t length() const { return length_; }  // surely cached
  int32_t num_uncertain() const { return num_uncertain_; }
  int32_t max_length() const { return length_ + num_uncertain_; }
  const PageTable& table(int group_idx) const { return tables_[group_idx]; }
  const PageTables& tables() const { return tables_; }

  // Pages that Reserve would take from the pool.
  int PagesNeeded(int32_t num_rows, int32_t num_drafts = 0) const;

  // Pages for so many rows more, the last `num_drafts` of which may be rejected. False, with
  // nothing taken, when the pool has too few. May be called again for more rows.
  [[nodiscard]] bool Reserve(int32_t num_rows, int32_t num_drafts = 0);
  // The first `num_rows` reserved rows are in the cache, all of them but at most `slack`, or will
  // be once the steps in flight have run; pages reserved beyond them stay.
  void Commit(int32_t num_rows, int32_t num_drafts = 0);
  // Of the oldest drafts committed, so many were accepted and so many rejected.
  void Settle(int32_t num_accepted, int32_t num_rejected);

  // The last `num_rows` rows, at most `slack`, are no longer cached; their pages stay. Only where
  // all drafts are settled.
  void TakeBack(int32_t num_rows);

  // Adds the entries that the table of `slot` lacks for the rows reserved: all that matter at first
  // and after Release, then those of new blocks.
  void TakeTableChanges(int32_t slot, std::vector<PageTableEntry>& entries);
  // The slot is bound again and has no table: all that matter are sent once more.
  void ForgetTableSent() { end_sent_ = {-1, -1}; }

  // Sliding pages that hold positions in [begin, end) are worth PageWorth::kEnd when they leave the
  // window; others are merely passed.
  void set_end_zone(int32_t begin, int32_t end) { end_zone_ = {begin, end}; }

  // Makes sure that a page is free by giving up only what would go before the key; false if nothing
  // would.
  using MakeRoom = std::function<bool(EvictionKey)>;
  // Leaves to the prefix cache what the step would lose for want of pages, as far as there is room:
  // pages it keeps that new rows took over, and rows of a chunk that will have left the window.
  // What it cannot keep it is told with `forget`. Between Reserve, for all sequences of the step,
  // and TakeTableChanges.
  void KeepLeaving(const MakeRoom& make_room, const std::function<void(PageIndex)>& forget);
  // Whether there is anything of the kind.
  bool has_leaving() const { return has_passing_ || !taken_over_.empty(); }

  // Starts this (empty) sequence at `length` with pages that hold that prefix, as PrefixCache finds
  // them: full blocks are shared, the block that `length` cuts is copied. False, with nothing
  // taken, when the pool has no page for a copy. Somebody must hold `tables` meanwhile, and what
  // copies are made from until they are made.
  [[nodiscard]] bool Resume(int32_t length, const PageTables& tables,
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
  int32_t NumReusable(int group_idx, int32_t num_sure_rows) const;
  // Behind the last such block.
  int32_t EndReusable(int group_idx, int32_t num_sure_rows) const;
  // Behind the last block of the rows.
  int32_t EndBlock(int group_idx, int32_t num_rows) const;
  void DropBlocksBehindWindow(int group_idx);
  PageWorth WorthOf(int group_idx, int32_t block) const;
  // Reserved rows are committed or given up.
  void EndReservation();
  // First block the sequence needs once it is `length` tokens long.
  int32_t FirstBlockNeeded(int group_idx, int32_t length, int32_t slack) const {
    return FirstBlockInReach(*plan_, *layout_, group_idx, length, slack);
  }
  bool GroupIsUsed(int group_idx) const { return !plan_->kv_groups[group_idx].layers.empty(); }

  const ModelPlan* plan_;
  const KvLayout* layout_;
  PagePool* pool_;
  int32_t slack_;
  int32_t length_ = 0;
  int32_t num_uncertain_ = 0;
  PageTables tables_;
  // By Reserve, until Commit.
  struct TakenOver {
    int32_t group_idx = 0;
    int32_t leaving_block = 0;
    int32_t new_block = 0;
  };
  std::vector<TakenOver> taken_over_;
  std::array<int32_t, kNumKvGroups> end_taken_over_{};
  bool has_passing_ = false;  // blocks without a page, whose rows will have left the window
  std::array<int32_t, 2> end_zone_{};
  std::array<int32_t, kNumKvGroups> end_sent_ = {-1, -1};  // TakeTableChanges; -1: nothing yet
};

}  // namespace lapidary
