#include "kv/sequence_pages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lapidary {

SequencePages::SequencePages(const ModelPlan& plan, const KvLayout& layout, PagePool& pool,
                             int32_t slack)
    : plan_(&plan), layout_(&layout), pool_(&pool), slack_(slack) {}

SequencePages::SequencePages(SequencePages&& other) noexcept
    : plan_(other.plan_),
      layout_(other.layout_),
      pool_(other.pool_),
      slack_(other.slack_),
      length_(std::exchange(other.length_, 0)),
      num_uncertain_(std::exchange(other.num_uncertain_, 0)),
      tables_(std::exchange(other.tables_, {})),
      taken_over_(std::exchange(other.taken_over_, {})),
      end_taken_over_(std::exchange(other.end_taken_over_, {})),
      has_passing_(std::exchange(other.has_passing_, false)),
      end_zone_(other.end_zone_),
      end_sent_(other.end_sent_) {}

SequencePages::~SequencePages() { Release(); }

int32_t SequencePages::EndBlock(int group_idx, int32_t num_rows) const {
  const int tokens = layout_->tokens_per_page[group_idx];
  return (max_length() + num_rows + tokens - 1) / tokens;
}

int32_t SequencePages::EndReusable(int group_idx, int32_t num_sure_rows) const {
  // Not the block that this step still adds rows to.
  const int32_t end_complete = length_ / layout_->tokens_per_page[group_idx];
  return std::min({FirstBlockNeeded(group_idx, length_ + num_sure_rows, slack_), end_complete,
                   tables_[group_idx].end_block()});
}

int32_t SequencePages::NumReusable(int group_idx, int32_t num_sure_rows) const {
  const PageTable& table = tables_[group_idx];
  const int32_t end_reusable = EndReusable(group_idx, num_sure_rows);
  int32_t reusable = 0;
  for (int32_t block = table.first_block; block < end_reusable; ++block) {
    const PageIndex page = table.PageOf(block);
    // The prefix cache may have to let go of it.
    if (page != kScratchPage && pool_->num_sequences(page) == 1) ++reusable;
  }
  return reusable;
}

int SequencePages::PagesNeeded(int32_t num_rows, int32_t num_drafts) const {
  const int32_t num_sure_rows = num_rows - num_drafts;
  int needed = 0;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    if (!GroupIsUsed(group_idx)) continue;
    const int32_t begin_block =
        std::max(tables_[group_idx].end_block(),
                 FirstBlockNeeded(group_idx, length_ + num_sure_rows, slack_));
    const int32_t new_blocks = std::max(0, EndBlock(group_idx, num_rows) - begin_block);
    needed += std::max(0, new_blocks - NumReusable(group_idx, num_sure_rows));
  }
  return needed;
}

bool SequencePages::Reserve(int32_t num_rows, int32_t num_drafts) {
  if (PagesNeeded(num_rows, num_drafts) > pool_->num_free()) return false;
  const int32_t num_sure_rows = num_rows - num_drafts;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    if (!GroupIsUsed(group_idx)) continue;
    const int32_t end_block = EndBlock(group_idx, num_rows);
    const int32_t first_needed = FirstBlockNeeded(group_idx, length_ + num_sure_rows, slack_);
    PageTable& table = tables_[group_idx];
    if (table.pages.empty()) table.first_block = length_ / layout_->tokens_per_page[group_idx];
    int32_t leaving_block = table.first_block;  // next candidate for reuse
    const int32_t end_leaving = EndReusable(group_idx, num_sure_rows);
    while (table.end_block() < end_block) {
      // Blocks of a long chunk that will have left the window by its end.
      if (table.end_block() < first_needed) {
        table.pages.push_back(kScratchPage);
        has_passing_ = true;
        continue;
      }
      while (leaving_block < end_leaving &&
             (table.PageOf(leaving_block) == kScratchPage ||
              pool_->num_sequences(table.PageOf(leaving_block)) != 1)) {
        ++leaving_block;
      }
      if (leaving_block < end_leaving) {
        const PageIndex page = table.PageOf(leaving_block);
        pool_->Share(page);  // Held by the old block until Commit, by the new one from now on.
        pool_->MarkOverwritten(page, true);
        taken_over_.push_back({group_idx, leaving_block, table.end_block()});
        ++leaving_block;
        end_taken_over_[group_idx] = leaving_block;
        table.pages.push_back(page);
      } else {
        table.pages.push_back(pool_->Allocate(group_idx));
      }
    }
  }
  return true;
}

PageWorth SequencePages::WorthOf(int group_idx, int32_t block) const {
  const int tokens = layout_->tokens_per_page[group_idx];
  const bool is_in_zone = block * tokens < end_zone_[1] && (block + 1) * tokens > end_zone_[0];
  return is_in_zone ? PageWorth::kEnd : PageWorth::kPassing;
}

void SequencePages::KeepLeaving(const MakeRoom& make_room,
                                const std::function<void(PageIndex)>& forget) {
  for (const TakenOver& taken : taken_over_) {
    PageTable& table = tables_[taken.group_idx];
    const PageIndex page = table.PageOf(taken.leaving_block);
    pool_->MarkOverwritten(page, false);
    if (!pool_->is_kept(page)) continue;
    const PageWorth worth = WorthOf(taken.group_idx, taken.leaving_block);
    if (!make_room(pool_->KeyIfFreed(page, worth))) {
      forget(page);
      continue;
    }
    table.pages[taken.new_block - table.first_block] = pool_->Allocate(taken.group_idx);
    pool_->Free(page);  // The old block still holds it.
  }
  taken_over_.clear();
  if (!std::exchange(has_passing_, false)) return;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    PageTable& table = tables_[group_idx];
    // Those next to the ones that stay first: a run of pages is what can be resumed from.
    for (int32_t idx = static_cast<int32_t>(table.pages.size()) - 1; idx >= 0; --idx) {
      if (table.pages[idx] != kScratchPage) continue;
      const PageWorth worth = WorthOf(group_idx, table.first_block + idx);
      if (!make_room(pool_->KeyNow(worth))) break;
      table.pages[idx] = pool_->Allocate(group_idx);
    }
  }
}

void SequencePages::EndReservation() {
  for (const TakenOver& taken : taken_over_) {
    const PageIndex page = tables_[taken.group_idx].PageOf(taken.leaving_block);
    pool_->MarkOverwritten(page, false);
  }
  taken_over_.clear();
  has_passing_ = false;
}

void SequencePages::Commit(int32_t num_rows, int32_t num_drafts) {
  for (const TakenOver& taken : taken_over_) {
    const PageIndex page = tables_[taken.group_idx].PageOf(taken.leaving_block);
    CHECK(!pool_->is_kept(page)) << "KeepLeaving was left out: " << page;
  }
  EndReservation();
  length_ += num_rows - num_drafts;
  num_uncertain_ += num_drafts;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) DropBlocksBehindWindow(group_idx);
}

void SequencePages::Settle(int32_t num_accepted, int32_t num_rejected) {
  num_uncertain_ -= num_accepted + num_rejected;
  CHECK_GE(num_uncertain_, 0);
  length_ += num_accepted;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) DropBlocksBehindWindow(group_idx);
}

void SequencePages::TakeBack(int32_t num_rows) {
  CHECK_EQ(num_uncertain_, 0);
  CHECK(num_rows >= 0 && num_rows <= std::min(slack_, length_)) << num_rows;
  length_ -= num_rows;
}

void SequencePages::DropBlocksBehindWindow(int group_idx) {
  PageTable& table = tables_[group_idx];
  // Blocks whose pages the new rows took over are overwritten, however few rows are committed.
  const int32_t end_taken_over = std::exchange(end_taken_over_[group_idx], 0);
  CHECK_LE(end_taken_over, FirstBlockNeeded(group_idx, length_, /*slack=*/0))
      << "more rows taken back than the slack of " << slack_;
  const int32_t first_kept = std::max(FirstBlockNeeded(group_idx, length_, slack_), end_taken_over);
  const int32_t gone = std::min<int32_t>(std::max(0, first_kept - table.first_block),
                                         static_cast<int32_t>(table.pages.size()));
  for (int32_t idx = 0; idx < gone; ++idx) {
    if (table.pages[idx] == kScratchPage) continue;
    pool_->Free(table.pages[idx], WorthOf(group_idx, table.first_block + idx));
  }
  table.pages.erase(table.pages.begin(), table.pages.begin() + gone);
  table.first_block += gone;
}

void SequencePages::TakeTableChanges(int32_t slot, std::vector<PageTableEntry>& entries) {
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    if (!GroupIsUsed(group_idx)) continue;
    const PageTable& table = tables_[group_idx];
    // At first, all that may be read and all that new rows may write, kept or not.
    int32_t block = end_sent_[group_idx];
    if (block < 0) {
      block = std::min(table.first_block, length_ / layout_->tokens_per_page[group_idx]);
    }
    for (; block < table.end_block(); ++block) {
      entries.push_back(
          {slot, group_idx, block, table.Contains(block) ? table.PageOf(block) : kScratchPage});
    }
    end_sent_[group_idx] = block;
  }
}

int SequencePages::PagesToResume(int32_t length) const {
  int copies = 0;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    if (GroupIsUsed(group_idx) && length % layout_->tokens_per_page[group_idx] != 0) ++copies;
  }
  return copies;
}

bool SequencePages::Resume(int32_t length, const PageTables& tables,
                           std::vector<PageCopy>& copies) {
  CHECK_EQ(length_, 0);
  if (PagesToResume(length) > pool_->num_free()) return false;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    const int32_t cut_block = length % layout_->tokens_per_page[group_idx] == 0
                                  ? -1
                                  : length / layout_->tokens_per_page[group_idx];
    PageTable& table = tables_[group_idx];
    table.first_block = tables[group_idx].first_block;
    for (const PageIndex page : tables[group_idx].pages) {
      if (table.end_block() == cut_block) {
        const PageIndex copy = pool_->Allocate(group_idx);
        copies.push_back({page, copy});
        table.pages.push_back(copy);
      } else {
        pool_->Share(page);
        table.pages.push_back(page);
      }
    }
  }
  length_ = length;
  return true;
}

void SequencePages::Release() {
  EndReservation();
  // The first of the full pages last: what goes first is worth nothing without what goes later.
  for (PageTable& table : tables_) {
    for (auto page = table.pages.rbegin(); page != table.pages.rend(); ++page) {
      if (*page != kScratchPage) pool_->Free(*page);
    }
    table = {};
  }
  end_taken_over_ = {};
  end_sent_ = {-1, -1};
  length_ = 0;
  num_uncertain_ = 0;
}

}  // namespace lapidary
