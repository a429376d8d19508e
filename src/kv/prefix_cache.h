// What prompts have in common, kept as the pages that hold it.
//
// The unit is a page of a group. Sequences leave theirs here as blocks fill up and when they end; a
// page stays while the pool has room. Where a prompt can go on is derived: at any position whose
// full-attention pages, all from the start, and whose sliding window are still there. A position
// inside a block is as good as one at its end: the page is copied and written on.
//
// Some positions are worth more than others: ends of messages, where the next turn goes on, and
// positions where sequences have gone on before. Such a point claims its pages, which then go later
// than those that were merely used. A point that its only user has left behind with a later point
// of its own (the conversation went on) gives its window up.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/kept_pages.h"
#include "kv/prefix_hashes.h"
#include "kv/sequence_pages.h"

namespace lapidary {

class PrefixCache {
 public:
  // `plan`, `layout` and `pool` must outlive it.
  PrefixCache(const ModelPlan& plan, const KvLayout& layout, PagePool& pool);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Told of all pages that are kept and dropped from now on, here and by the destructor, which it
  // must outlive; may be null.
  void set_observer(PrefixCacheObserver* observer) { kept_.set_observer(observer); }

  struct Match {
    int32_t length = 0;  // 0: nothing found
    PageTables tables;   // as SequencePages::Resume takes them; not held
    bool parts = false;  // pages that are kept go on in another way: prompts part here
  };
  // At or before a position, the last one at which a sequence may go on; null: everywhere.
  using Resumable = std::function<int32_t(int32_t)>;

  // The longest proper prefix of what was hashed that a sequence can go on from. Does not count as
  // a use. Costs a look-up for each block of the prefix.
  Match Find(const PrefixHashes& hashes, const Resumable& resumable = nullptr) const;

  // `page` of a sequence holds its block's tokens up to position `end`; see KeptPages.
  void Keep(int group_idx, int32_t block, PageIndex page, const PrefixHashes& hashes, int32_t end,
            uint64_t writer, std::span<const int32_t> tokens = {});
  // Its tokens are lost: it is overwritten.
  void Drop(PageIndex page);
  // Whatever a sequence wrote cannot be trusted.
  void DropWrittenBy(uint64_t writer);

  // The first `length` tokens end where others may go on. Nothing if some page of them is gone.
  void MarkPoint(const PrefixHashes& hashes, int32_t length);
  // `user` was admitted and goes on from there. One that comes back after a preemption is no second
  // user. Where prompts part, the sequence that was there first is a user too.
  void UsePoint(const PrefixHashes& hashes, int32_t length, bool prompts_part, uint64_t user);
  // A sequence that went on from there has a later point: unless others went on from there too, the
  // point is one no more.
  void LeavePoint(const PrefixHashes& hashes, int32_t length);
  bool IsPoint(const PrefixHashes& hashes, int32_t length) const;

  // Gives up the page that is worth least; false when there is none.
  bool EvictOne();
  // Makes sure that a page is free, giving up only what would go before `key`.
  bool MakeRoom(EvictionKey key);
  void Clear();

  uint64_t num_evicted() const { return num_evicted_; }
  const KeptPages& kept() const { return kept_; }
  void CheckIntegrity() const;

 private:
  struct Point {
    uint64_t id = 0;
    int32_t length = 0;
    int num_users = 0;
    uint64_t last_user = 0;
  };
  // The point that claimed a page last, and what was claimed before.
  struct Claim {
    uint64_t point = 0;
    EvictionKey before = 0;
  };

  bool GroupIsUsed(int group_idx) const { return !plan_.kv_groups[group_idx].layers.empty(); }
  // How far all pages of the full group go, at most `limit`; adds them to `table`.
  int32_t FindFull(const PrefixHashes& hashes, int32_t limit, PageTable& table) const;
  // The last position up to `length` that has its window; adds that to `table`.
  int32_t FindWindow(const PrefixHashes& hashes, int32_t length, const Resumable& resumable,
                     PageTable& table) const;
  bool PartsAt(const PrefixHashes& hashes, const Match& match) const;

  // The pages that a sequence of this length needs; false if one is gone.
  bool FindPages(const PrefixHashes& hashes, int32_t length, PageTables& tables) const;
  // The page that holds a point of this length (the last one of its window) and the point; null: it
  // is none.
  Point* FindPoint(const PrefixHashes& hashes, int32_t length, PageIndex* page = nullptr) const;
  // The point, made if it is none yet, with its pages claimed; null if a page of it is gone.
  Point* ClaimPoint(const PrefixHashes& hashes, int32_t length);
  void ClaimPage(PageIndex page, uint64_t point);
  // Of a page whose content `to` has too.
  void MovePoints(PageIndex from, PageIndex to);

  const ModelPlan& plan_;
  const KvLayout& layout_;
  PagePool& pool_;
  KeptPages kept_;
  std::vector<Claim> claims_;  // by page
  // By the page that holds a point's last token.
  mutable std::unordered_map<PageIndex, std::vector<Point>> points_;
  uint64_t last_point_ = 0;
  uint64_t num_evicted_ = 0;
};

}  // namespace lapidary
