// Changes of the prefix cache on their way to another thread, as plain data.
//
// The cache's thread only writes down pages and tokens. Another thread hashes them and makes events
// of them (kv/resumable_blocks.h), so planning a step costs hardly more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "kv/prefix_cache_observer.h"

namespace lapidary {

struct CacheChanges {
  // Half a cache line: the engine's thread writes one for every page that is kept.
  struct Change {
    PrefixHash before = {};  // of the prefix up to the first new token
    PageIndex page = kScratchPage;
    int32_t block = 0;
    uint16_t num_before = 0;  // tokens of the block that the page held already
    uint16_t num_tokens = 0;  // new ones
    uint16_t num_media = 0;   // that have tokens between the block's start and the last new one
    int8_t group_idx = 0;
    bool is_kept : 1 = false;     // else the page is dropped, and the rest says nothing
    bool has_origin : 1 = false;  // the next of `origins` is its prefix's
  };
  static_assert(sizeof(Change) == 32);
  // What a prefix has before its first token.
  struct Origin {
    uint64_t adapter = 0;
    std::string salt;
  };

  bool cleared = false;  // before all of these, every page was dropped
  std::vector<Change> changes;
  // Of all changes, concatenated.
  std::vector<int32_t> tokens;
  std::vector<MediaDigest> media;
  std::vector<Origin> origins;

  bool empty() const { return !cleared && changes.empty(); }
  size_t NumBytes() const;
  void Clear();
  void Append(const CacheChanges& later);
};

// A bounded queue between the cache's thread and one other. When it is full, all changes are lost,
// and the other thread takes "the cache was cleared" instead: what is cached then stays unknown,
// but nothing that may be gone is counted on.
class CacheChangeQueue final : public PrefixCacheObserver {
 public:
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  explicit CacheChangeQueue(size_t max_bytes = kMaxBytes) : max_bytes_(max_bytes) {}

  // The cache's thread. What they are told can be taken some time after.
  void PageKept(const KeptPageNews& news) noexcept override;
  void PageDropped(PageIndex page) noexcept override;
  void Cleared() noexcept override;
  // Lets the other thread take all changes if it has taken those before. Costs next to nothing.
  void HandOver() noexcept {
    if (was_taken_.load(std::memory_order_relaxed) && !seen_.empty()) HandOverAll();
  }
  // The same, whether it has or not: before the cache's thread rests.
  void HandOverAll() noexcept;

  // The other thread: what was handed over, in `changes`; false: nothing, and `wake` is called once
  // there is something.
  bool Take(CacheChanges* changes);
  // Called on the cache's thread; before it begins. Must not throw.
  void set_wake(std::function<void()> wake) { wake_ = std::move(wake); }
  // How often changes were lost.
  uint64_t num_losses() const;

 private:
  // All that is not taken yet.
  void Lose() noexcept;

  const size_t max_bytes_;
  std::function<void()> wake_;
  CacheChanges seen_;  // not handed over yet
  std::atomic<bool> was_taken_{true};

  mutable std::mutex mutex_;
  CacheChanges handed_over_;
  bool must_wake_ = false;
  uint64_t num_losses_ = 0;
};

}  // namespace lapidary
