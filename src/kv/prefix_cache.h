// Prefixes worth keeping: snapshots of sequences at positions where another prompt may go on.
//
// To resume at position p a sequence needs every full-attention page below p and the sliding window
// before p. A snapshot holds both, so neither can be lost without the other: it is there as a whole
// or gone as a whole. Snapshots share pages with each other and with running sequences.
//
// When the pool runs dry the least valuable snapshot goes first: those that a longer snapshot of
// the same conversation has overtaken, then the least recently used.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kv/prefix_hashes.h"
#include "kv/sequence_pages.h"

namespace lapidary {

class PrefixCache {
 public:
  explicit PrefixCache(PagePool& pool);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Match {
    int32_t length = 0;  // 0: nothing found
    PrefixHash hash;
    const PageTables* tables = nullptr;  // valid until the next Insert or Evict
  };

  // The longest snapshot of a proper prefix of what was hashed. Does not count as a use. Costs a
  // look-up per length at which there are snapshots, however long the prompt.
  Match Find(const PrefixHashes& hashes) const;
  // `user` was admitted and goes on from this snapshot, now the most recently used. One that comes
  // back after a preemption is no second user.
  void MarkUsed(const PrefixHash& hash, uint64_t user);

  // Takes over the page holds of `tables` (SequencePages::TakeSnapshot). Gives them back at once
  // when the prefix is already there. `resumed_from` is overtaken by the new one, unless several
  // sequences have used it (a shared system prompt).
  void Insert(const PrefixHash& hash, int32_t length, PageTables tables,
              const std::optional<PrefixHash>& resumed_from);

  bool Contains(const PrefixHash& hash) const { return snapshots_.contains(hash); }

  // Drops the least valuable snapshot but `kept`; false when there is none. Its pages are free only
  // if nobody else holds them.
  bool EvictOne(const std::optional<PrefixHash>& kept = std::nullopt);
  void Clear();

  // Adds one to holders[page] for every page hold, for integrity checks.
  void CountHolders(std::vector<int>& holders) const;

  int num_snapshots() const { return static_cast<int>(snapshots_.size()); }

 private:
  struct Snapshot {
    PrefixHash hash;
    int32_t length = 0;
    PageTables tables;
    int num_users = 0;  // sequences that went on from it
    uint64_t last_user = 0;
    bool is_overtaken = false;
  };
  struct HashOfHash {
    size_t operator()(const PrefixHash& hash) const { return hash.low; }
  };
  using SnapshotList = std::list<Snapshot>;

  void MakeMostRecent(SnapshotList::iterator snapshot);
  void Drop(SnapshotList::iterator snapshot);

  PagePool& pool_;
  // Least valuable first.
  SnapshotList overtaken_;
  SnapshotList current_;
  std::unordered_map<PrefixHash, SnapshotList::iterator, HashOfHash> snapshots_;
  std::map<int32_t, int, std::greater<>> num_of_length_;  // snapshots by length, longest first
};

}  // namespace lapidary
