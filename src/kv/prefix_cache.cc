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

PrefixCache::PrefixCache(PagePool& pool) : pool_(pool) {}

PrefixCache::~PrefixCache() { Clear(); }

PrefixCache::Match PrefixCache::Find(const PrefixHashes& hashes) const {
  for (auto it = num_of_length_.upper_bound(hashes.length()); it != num_of_length_.end(); ++it) {
    const auto [length, count] = *it;
    const auto found = snapshots_.find(hashes.Of(length));
    if (found != snapshots_.end()) return {length, found->first, &found->second->tables};
  }
  return {};
}

void PrefixCache::MakeMostRecent(SnapshotList::iterator snapshot) {
  SnapshotList& from = snapshot->is_overtaken ? overtaken_ : current_;
  snapshot->is_overtaken = false;
  current_.splice(current_.end(), from, snapshot);
}

void PrefixCache::MarkUsed(const PrefixHash& hash, uint64_t user) {
  const auto it = snapshots_.find(hash);
  if (it == snapshots_.end()) return;
  Snapshot& snapshot = *it->second;
  if (snapshot.num_users == 0 || snapshot.last_user != user) ++snapshot.num_users;
  snapshot.last_user = user;
  MakeMostRecent(it->second);
}

void PrefixCache::Insert(const PrefixHash& hash, int32_t length, PageTables tables,
                         const std::optional<PrefixHash>& resumed_from) {
  if (const auto it = snapshots_.find(hash); it != snapshots_.end()) {
    FreeTables(pool_, tables);
    MakeMostRecent(it->second);
    return;
  }
  current_.push_back({.hash = hash, .length = length, .tables = std::move(tables)});
  snapshots_[hash] = std::prev(current_.end());
  ++num_of_length_[length];
  if (!resumed_from) return;
  const auto it = snapshots_.find(*resumed_from);
  if (it == snapshots_.end() || it->second->is_overtaken || it->second->num_users > 1 ||
      it->second->length >= length) {
    return;
  }
  it->second->is_overtaken = true;
  overtaken_.splice(overtaken_.end(), current_, it->second);
}

void PrefixCache::Drop(SnapshotList::iterator snapshot) {
  FreeTables(pool_, snapshot->tables);
  snapshots_.erase(snapshot->hash);
  const auto count = num_of_length_.find(snapshot->length);
  if (--count->second == 0) num_of_length_.erase(count);
  (snapshot->is_overtaken ? overtaken_ : current_).erase(snapshot);
}

bool PrefixCache::EvictOne(const std::optional<PrefixHash>& kept) {
  for (SnapshotList* list : {&overtaken_, &current_}) {
    auto it = list->begin();
    if (it != list->end() && it->hash == kept) ++it;
    if (it == list->end()) continue;
    Drop(it);
    return true;
  }
  return false;
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
