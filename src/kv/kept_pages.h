// The pages that the prefix cache keeps, found by the prefix whose tokens they hold.
//
// A kept page holds the keys and values of a block's first tokens: all of them, or as many as its
// sequence had written. What they are depends on everything before them, so a page is known by the
// hash of the prefix where its block starts and by the hash after each of its tokens. Two prompts
// that part inside a block find the same page and how far it is theirs.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/kv_layout.h"
#include "kv/page_pool.h"
#include "kv/prefix_cache_observer.h"
#include "kv/prefix_hashes.h"

namespace lapidary {

class KeptPages {
 public:
  // `layout` and `pool` must outlive it.
  KeptPages(const KvLayout& layout, PagePool& pool);

  // Told of what is kept and dropped from now on; may be null.
  void set_observer(PrefixCacheObserver* observer) { observer_ = observer; }
  PrefixCacheObserver* observer() const { return observer_; }

  struct Found {
    PageIndex page = kScratchPage;
    int32_t num_tokens = 0;  // of the block, 0: nothing found
  };
  // The page with most of a block's tokens, `max_tokens` at most, that the hashed sequence has too.
  // Pages that are about to be overwritten are not found.
  Found Find(int group_idx, int32_t block, const PrefixHashes& hashes, int32_t max_tokens) const;

  // `page` holds the block's tokens up to position `end`: keeps it, or more of it than before, as
  // written by `writer`. Not if another kept page has them. True if it is kept. `tokens`: what was
  // hashed; only an observer needs them.
  bool Keep(int group_idx, int32_t block, PageIndex page, const PrefixHashes& hashes, int32_t end,
            uint64_t writer, std::span<const int32_t> tokens = {});
  void Drop(PageIndex page);

  // Kept pages of which a part is the same as the whole of `page`'s content, or less: they are
  // dropped where no sequence has them; `replace(old page)` is called before.
  template <typename Replace>
  void DropCovered(PageIndex page, const Replace& replace);

  int group(PageIndex page) const { return entries_[page].group_idx; }
  int32_t block(PageIndex page) const { return entries_[page].block; }
  uint64_t writer(PageIndex page) const { return entries_[page].writer; }
  int32_t num_tokens(PageIndex page) const {
    return static_cast<int32_t>(entries_[page].hashes.size());
  }
  // PrefixHash::low after each token.
  std::span<const uint64_t> hashes(PageIndex page) const { return entries_[page].hashes; }
  // Whether a kept page has tokens behind the first `length` of the hashed sequence, where a block
  // of the group starts.
  bool HasNext(int group_idx, int32_t length, const PrefixHashes& hashes) const {
    return first_of_[group_idx].contains(hashes.Of(length));
  }

  // The index says of every kept page what the page says of itself.
  void CheckIntegrity() const;

 private:
  struct Entry {
    int32_t group_idx = -1;  // -1: not kept
    int32_t block = 0;
    uint64_t writer = 0;
    PrefixHash before;             // where the block starts
    PrefixHash after;              // behind the last token, if the block is complete
    std::vector<uint64_t> hashes;  // of its tokens; 8 bytes beside the kilobytes of a token
    // Pages of other contents at the same place, newest first.
    PageIndex next = kScratchPage;
    PageIndex previous = kScratchPage;
  };
  struct HashOfHash {
    size_t operator()(const PrefixHash& hash) const { return hash.low; }
  };
  using PageByHash = std::unordered_map<PrefixHash, PageIndex, HashOfHash>;
  // So many pages of one place are compared. Most of a place's pages part from a prompt where the
  // others do, and complete ones that agree are found by their own hash.
  static constexpr int kMaxCompared = 32;

  // `next`: scratch if there is none.
  void LinkBefore(PageIndex next, PageIndex page);
  void Unlink(PageIndex page);
  bool IsComplete(const Entry& entry) const {
    return static_cast<int>(entry.hashes.size()) == layout_.tokens_per_page[entry.group_idx];
  }

  // That a page holds more of its block than the first `num_before` tokens.
  void TellKept(PageIndex page, const PrefixHashes& hashes, int32_t num_before,
                std::span<const int32_t> tokens) const;

  const KvLayout& layout_;
  PagePool& pool_;
  PrefixCacheObserver* observer_ = nullptr;
  std::vector<Entry> entries_;                           // by page
  std::array<PageByHash, kNumKvGroups> first_of_;        // by Entry::before: the newest page
  std::array<PageByHash, kNumKvGroups> complete_pages_;  // by Entry::after
};

template <typename Replace>
void KeptPages::DropCovered(PageIndex page, const Replace& replace) {
  const Entry& entry = entries_[page];
  if (entry.next == kScratchPage && entry.previous == kScratchPage) return;
  const std::span<const uint64_t> ours = hashes(page);
  int num_compared = 0;
  PageIndex other = first_of_[entry.group_idx].at(entry.before);
  while (other != kScratchPage && num_compared++ < kMaxCompared) {
    const PageIndex next = entries_[other].next;
    const std::span<const uint64_t> theirs = hashes(other);
    const bool is_covered =
        other != page && theirs.size() <= ours.size() && theirs.back() == ours[theirs.size() - 1];
    if (is_covered && pool_.num_sequences(other) == 0) {
      replace(other);
      Drop(other);
    }
    other = next;
  }
}

}  // namespace lapidary
