// Who is told what the prefix cache keeps and gives up.
#pragma once

#include <cstdint>
#include <span>

#include "kv/page_pool.h"
#include "kv/prefix_hashes.h"

namespace lapidary {

// A page that is kept now, or holds more of its block than it did.
struct KeptPageNews {
  PageIndex page = kScratchPage;
  int group_idx = 0;
  int32_t block = 0;
  int32_t start = 0;                // position where the block starts
  int32_t begin = 0;                // of what is new: `start` if the page was not kept
  std::span<const int32_t> tokens;  // from `begin` on
  const PrefixHashes& hashes;       // of the sequence, up to end() at least

  int32_t end() const { return begin + static_cast<int32_t>(tokens.size()); }
};

// Called on the cache's thread, as things happen: must be quick.
class PrefixCacheObserver {
 public:
  virtual ~PrefixCacheObserver() = default;
  virtual void PageKept(const KeptPageNews& news) noexcept = 0;
  virtual void PageDropped(PageIndex page) noexcept = 0;
  // All pages are dropped.
  virtual void Cleared() noexcept = 0;
};

}  // namespace lapidary
