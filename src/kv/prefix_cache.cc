#include "kv/prefix_cache.h"

#include <utility>

namespace lapidary {
namespace {

void FreeTables(PagePool& pool, const PageTables& tables) {
  for (const PageTable& table : tables) {
    for (const PageIndex page : table.pages) pool.Free(page, PageHolder::kCache);
  }
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, uint64_t seed) : pool_(pool), seed_(seed) {}

PrefixCache::~PrefixCache() { Clear(); }

PrefixHash PrefixCache::HashOf(std::span<const int32_t> prefix) const {
  PrefixHasher hasher(seed_);
  for (const int32_t token : prefix) hasher.Add(token);
  return hasher.hash();
}

PrefixCache::Match PrefixCache::Find(std::span<const int32_t> ids) const {
  Match best;
  if (snapshots_.empty()) return best;
  PrefixHasher hasher(seed_);
  for (size_t idx = 0; idx + 1 < ids.size(); ++idx) {
    hasher.Add(ids[idx]);
    const auto it = snapshots_.find(hasher.hash());
    if (it == snapshots_.end()) continue;
    best = {static_cast<int32_t>(idx + 1), hasher.hash(), &it->second->tables};
  }
  return best;
}

void PrefixCache::MarkUsed(const PrefixHash& hash) {
  const auto it = snapshots_.find(hash);
  if (it == snapshots_.end()) return;
  Snapshot& snapshot = *it->second;
  ++snapshot.num_uses;
  SnapshotList& from = snapshot.is_overtaken ? overtaken_ : current_;
  snapshot.is_overtaken = false;
  current_.splice(current_.end(), from, it->second);
}

bool PrefixCache::Contains(std::span<const int32_t> prefix) const {
  return snapshots_.contains(HashOf(prefix));
}

void PrefixCache::Insert(std::span<const int32_t> prefix, PageTables tables,
                         const std::optional<PrefixHash>& resumed_from) {
  const PrefixHash hash = HashOf(prefix);
  if (const auto it = snapshots_.find(hash); it != snapshots_.end()) {
    FreeTables(pool_, tables);
    SnapshotList& from = it->second->is_overtaken ? overtaken_ : current_;
    it->second->is_overtaken = false;
    current_.splice(current_.end(), from, it->second);
    return;
  }
  current_.push_back(
      {.hash = hash, .length = static_cast<int32_t>(prefix.size()), .tables = std::move(tables)});
  snapshots_[hash] = std::prev(current_.end());
  if (!resumed_from) return;
  const auto it = snapshots_.find(*resumed_from);
  if (it == snapshots_.end() || it->second->is_overtaken || it->second->num_uses > 1 ||
      it->second->length >= static_cast<int32_t>(prefix.size())) {
    return;
  }
  it->second->is_overtaken = true;
  overtaken_.splice(overtaken_.end(), current_, it->second);
}

void PrefixCache::Drop(SnapshotList::iterator snapshot) {
  FreeTables(pool_, snapshot->tables);
  snapshots_.erase(snapshot->hash);
  (snapshot->is_overtaken ? overtaken_ : current_).erase(snapshot);
}

bool PrefixCache::EvictOne() {
  if (!overtaken_.empty()) {
    Drop(overtaken_.begin());
  } else if (!current_.empty()) {
    Drop(current_.begin());
  } else {
    return false;
  }
  return true;
}

void PrefixCache::CountHolders(std::vector<int>& holders) const {
  for (const SnapshotList* list : {&overtaken_, &current_}) {
    for (const Snapshot& snapshot : *list) {
      for (const PageTable& table : snapshot.tables) {
        for (const PageIndex page : table.pages) ++holders[page];
      }
    }
  }
}

void PrefixCache::Clear() {
  while (EvictOne()) {
  }
}

}  // namespace lapidary
