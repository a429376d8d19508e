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
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/sequence_pages.h"

namespace lapidary {

// 128 bits over a token prefix, seeded per process so that nobody can construct a collision.
struct PrefixHash {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const PrefixHash&) const = default;
};

class PrefixHasher {
 public:
  explicit PrefixHasher(uint64_t seed) : state_{Mix(seed), Mix(~seed)} {}
  void Add(int32_t token) {
    state_.low = Mix(state_.low ^ (static_cast<uint32_t>(token) + 0x9e3779b97f4a7c15u));
    state_.high = Mix(state_.high + (uint64_t{static_cast<uint32_t>(token)} << 32 | 0x85ebca6bu));
  }
  const PrefixHash& hash() const { return state_; }

 private:
  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  PrefixHash state_;
};

class PrefixCache {
 public:
  PrefixCache(PagePool& pool, uint64_t seed);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Match {
    int32_t length = 0;  // 0: nothing found
    PrefixHash hash;
    const PageTables* tables = nullptr;  // valid until the next Insert or Evict
  };

  // The longest snapshot of a proper prefix of `ids`. Does not count as a use.
  Match Find(std::span<const int32_t> ids) const;
  // A sequence resumed from this snapshot: it becomes the most recently used.
  void MarkUsed(const PrefixHash& hash);

  // Takes over the page holds of `tables` (SequencePages::TakeSnapshot). Gives them back at once
  // when the prefix is already there. `resumed_from` is overtaken by the new one, unless several
  // sequences have used it (a shared system prompt).
  void Insert(std::span<const int32_t> prefix, PageTables tables,
              const std::optional<PrefixHash>& resumed_from);

  bool Contains(std::span<const int32_t> prefix) const;

  // Drops the least valuable snapshot; false when there is none. Its pages are free only if nobody
  // else holds them.
  bool EvictOne();
  void Clear();

  // Adds one to holders[page] for every page hold, for integrity checks.
  void CountHolders(std::vector<int>& holders) const;

  int num_snapshots() const { return static_cast<int>(snapshots_.size()); }

 private:
  struct Snapshot {
    PrefixHash hash;
    int32_t length = 0;
    PageTables tables;
    int num_uses = 0;
    bool is_overtaken = false;
  };
  struct HashOfHash {
    size_t operator()(const PrefixHash& hash) const { return hash.low; }
  };
  using SnapshotList = std::list<Snapshot>;

  PrefixHash HashOf(std::span<const int32_t> prefix) const;
  void Drop(SnapshotList::iterator snapshot);

  PagePool& pool_;
  const uint64_t seed_;
  // Least valuable first.
  SnapshotList overtaken_;
  SnapshotList current_;
  std::unordered_map<PrefixHash, SnapshotList::iterator, HashOfHash> snapshots_;
};

}  // namespace lapidary
