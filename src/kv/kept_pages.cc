#include "kv/kept_pages.h"

#include <algorithm>

#include "base/check.h"

namespace lapidary {

KeptPages::KeptPages(const KvLayout& layout, PagePool& pool)
    : layout_(layout), pool_(pool), entries_(pool.num_pages()) {
  for (PageByHash& pages : first_of_) pages.reserve(pool.num_pages() / 2);
  for (PageByHash& pages : complete_pages_) pages.reserve(pool.num_pages() / 2);
}

KeptPages::Found KeptPages::Find(int group_idx, int32_t block, const PrefixHashes& hashes,
                                 int32_t max_tokens) const {
  const int32_t tokens = layout_.tokens_per_page[group_idx];
  const int32_t start = block * tokens;
  max_tokens = std::min({max_tokens, tokens, hashes.length() - start});
  if (max_tokens <= 0) return {};
  if (hashes.length() >= start + tokens) {
    const auto it = complete_pages_[group_idx].find(hashes.Of(start + tokens));
    if (it != complete_pages_[group_idx].end() && !pool_.is_overwritten(it->second)) {
      return {it->second, max_tokens};
    }
  }
  const auto first = first_of_[group_idx].find(hashes.Of(start));
  if (first == first_of_[group_idx].end()) return {};
  Found best;
  int num_compared = 0;
  for (PageIndex page = first->second; page != kScratchPage && num_compared < kMaxCompared;
       page = entries_[page].next, ++num_compared) {
    if (pool_.is_overwritten(page)) continue;
    // Once two sequences have parted their hashes never agree again.
    const std::vector<uint64_t>& theirs = entries_[page].hashes;
    const auto end = theirs.begin() + std::min<ptrdiff_t>(std::ssize(theirs), max_tokens);
    const auto parting = std::partition_point(theirs.begin(), end, [&](const uint64_t& low) {
      const int32_t length = start + 1 + static_cast<int32_t>(&low - theirs.data());
      return low == hashes.Of(length).low;
    });
    const int32_t num_tokens = static_cast<int32_t>(parting - theirs.begin());
    if (num_tokens > best.num_tokens) best = {page, num_tokens};
    if (best.num_tokens == max_tokens) break;
  }
  return best;
}

void KeptPages::LinkBefore(PageIndex next, PageIndex page) {
  entries_[page].previous = kScratchPage;
  entries_[page].next = next;
  if (next != kScratchPage) entries_[next].previous = page;
}

void KeptPages::Unlink(PageIndex page) {
  const Entry& entry = entries_[page];
  if (entry.next != kScratchPage) entries_[entry.next].previous = entry.previous;
  if (entry.previous != kScratchPage) {
    entries_[entry.previous].next = entry.next;
  } else if (entry.next != kScratchPage) {
    first_of_[entry.group_idx][entry.before] = entry.next;
  } else {
    first_of_[entry.group_idx].erase(entry.before);
  }
}

void KeptPages::TellKept(PageIndex page, const PrefixHashes& hashes, int32_t num_before,
                         std::span<const int32_t> tokens) const {
  const Entry& entry = entries_[page];
  const int32_t start = entry.block * layout_.tokens_per_page[entry.group_idx];
  const int32_t begin = start + num_before;
  const int32_t end = start + static_cast<int32_t>(entry.hashes.size());
  CHECK_LE(end, static_cast<int32_t>(tokens.size()));
  observer_->PageKept({.page = page,
                       .group_idx = entry.group_idx,
                       .block = entry.block,
                       .start = start,
                       .begin = begin,
                       .tokens = tokens.subspan(begin, end - begin),
                       .hashes = hashes});
}

bool KeptPages::Keep(int group_idx, int32_t block, PageIndex page, const PrefixHashes& hashes,
                     int32_t end, uint64_t writer, std::span<const int32_t> tokens) {
  const int32_t tokens_per_page = layout_.tokens_per_page[group_idx];
  const int32_t start = block * tokens_per_page;
  const int32_t num_tokens = std::min(end - start, tokens_per_page);
  CHECK_GT(num_tokens, 0);
  Entry& entry = entries_[page];
  const bool was_kept = pool_.is_kept(page);
  if (was_kept) {
    CHECK(entry.group_idx == group_idx && entry.block == block) << page;
    if (static_cast<int32_t>(entry.hashes.size()) >= num_tokens) return true;
  } else {
    // Most blocks are the first of their place: then no other page can have their tokens.
    const auto [first, is_first] = first_of_[group_idx].try_emplace(hashes.Of(start), page);
    if (!is_first) {
      if (Find(group_idx, block, hashes, num_tokens).num_tokens == num_tokens) return false;
      if (num_tokens == tokens_per_page &&
          complete_pages_[group_idx].contains(hashes.Of(start + tokens_per_page))) {
        return false;
      }
    }
    entry.group_idx = group_idx;
    entry.block = block;
    entry.writer = writer;
    entry.before = hashes.Of(start);
    entry.hashes.clear();
    entry.hashes.reserve(tokens_per_page);
    pool_.Keep(page);
    LinkBefore(is_first ? kScratchPage : first->second, page);
    first->second = page;
  }
  const int32_t num_before = static_cast<int32_t>(entry.hashes.size());
  for (int32_t at = num_before; at < num_tokens; ++at) {
    entry.hashes.push_back(hashes.Of(start + at + 1).low);
  }
  if (num_tokens == tokens_per_page) entry.after = hashes.Of(start + tokens_per_page);
  if (num_tokens < tokens_per_page ||
      complete_pages_[group_idx].emplace(entry.after, page).second) {
    if (observer_ != nullptr) TellKept(page, hashes, num_before, tokens);
    return true;
  }
  // Another has completed the same block meanwhile.
  entry.hashes.pop_back();
  Drop(page);
  return false;
}

void KeptPages::Drop(PageIndex page) {
  Entry& entry = entries_[page];
  CHECK_GE(entry.group_idx, 0) << page;
  if (IsComplete(entry)) complete_pages_[entry.group_idx].erase(entry.after);
  Unlink(page);
  entry.group_idx = -1;
  entry.hashes.clear();
  pool_.Drop(page);
  if (observer_ != nullptr) observer_->PageDropped(page);
}

void KeptPages::CheckIntegrity() const {
  std::array<size_t, kNumKvGroups> num_complete{};
  std::array<size_t, kNumKvGroups> num_first{};
  for (PageIndex page = 1; page < pool_.num_pages(); ++page) {
    const Entry& entry = entries_[page];
    CHECK_EQ(pool_.is_kept(page), entry.group_idx >= 0) << page;
    if (entry.group_idx < 0) continue;
    CHECK(!entry.hashes.empty()) << page;
    if (IsComplete(entry)) {
      ++num_complete[entry.group_idx];
      CHECK_EQ(complete_pages_[entry.group_idx].at(entry.after), page);
    }
    if (entry.next != kScratchPage) CHECK_EQ(entries_[entry.next].previous, page);
    if (entry.previous != kScratchPage) {
      CHECK_EQ(entries_[entry.previous].next, page);
    } else {
      ++num_first[entry.group_idx];
      CHECK_EQ(first_of_[entry.group_idx].at(entry.before), page);
    }
  }
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    CHECK_EQ(num_complete[group_idx], complete_pages_[group_idx].size());
    CHECK_EQ(num_first[group_idx], first_of_[group_idx].size());
  }
}

}  // namespace lapidary
