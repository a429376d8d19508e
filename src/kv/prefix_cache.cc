#include "kv/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace lapidary {

PrefixCache::PrefixCache(const ModelPlan& plan, const KvLayout& layout, PagePool& pool)
    : plan_(plan), layout_(layout), pool_(pool), kept_(layout, pool), claims_(pool.num_pages()) {}

PrefixCache::~PrefixCache() { Clear(); }

int32_t PrefixCache::FindFull(const PrefixHashes& hashes, int32_t limit, PageTable& table) const {
  if (!GroupIsUsed(kFullGroup)) return limit;
  const int32_t tokens = layout_.tokens_per_page[kFullGroup];
  for (int32_t block = 0; block * tokens < limit; ++block) {
    const int32_t wanted = std::min(tokens, limit - block * tokens);
    const KeptPages::Found found = kept_.Find(kFullGroup, block, hashes, wanted);
    if (found.num_tokens > 0) table.pages.push_back(found.page);
    if (found.num_tokens < tokens) return block * tokens + found.num_tokens;
  }
  return limit;
}

int32_t PrefixCache::FindWindow(const PrefixHashes& hashes, int32_t length,
                                const Resumable& resumable, PageTable& table) const {
  const int32_t tokens = layout_.tokens_per_page[kSlidingGroup];
  const auto lower = [&](int32_t position) { return resumable ? resumable(position) : position; };
  length = lower(length);
  if (!GroupIsUsed(kSlidingGroup)) return length;
  // From the last block down. Where one lacks tokens no position behind it has its window, up to a
  // window's length: the search begins anew with what the block has.
  std::vector<PageIndex> pages;  // last block first
  int32_t block = (length - 1) / tokens;
  while (length > 0 && block >= FirstBlockInReach(plan_, layout_, kSlidingGroup, length)) {
    const int32_t wanted = std::min(tokens, length - block * tokens);
    const KeptPages::Found found = kept_.Find(kSlidingGroup, block, hashes, wanted);
    if (found.num_tokens == wanted) {
      pages.push_back(found.page);
      --block;
      continue;
    }
    pages.clear();
    length = lower(block * tokens + found.num_tokens);
    block = (length - 1) / tokens;
  }
  if (length <= 0) return 0;
  table.first_block = block + 1;
  table.pages.assign(pages.rbegin(), pages.rend());
  return length;
}

bool PrefixCache::PartsAt(const PrefixHashes& hashes, const Match& match) const {
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    const PageTable& table = match.tables[group_idx];
    if (table.pages.empty()) continue;
    const int32_t start = (table.end_block() - 1) * layout_.tokens_per_page[group_idx];
    if (kept_.num_tokens(table.pages.back()) > match.length - start) return true;
  }
  return match.length % layout_.tokens_per_page[kFullGroup] == 0 &&
         kept_.HasNext(kFullGroup, match.length, hashes);
}

PrefixCache::Match PrefixCache::Find(const PrefixHashes& hashes, const Resumable& resumable) const {
  Match match;
  match.length = FindFull(hashes, hashes.length() - 1, match.tables[kFullGroup]);
  if (match.length <= 0) return {};
  match.length = FindWindow(hashes, match.length, resumable, match.tables[kSlidingGroup]);
  if (match.length <= 0) return {};
  if (GroupIsUsed(kFullGroup)) {
    const int32_t tokens = layout_.tokens_per_page[kFullGroup];
    match.tables[kFullGroup].pages.resize((match.length + tokens - 1) / tokens);
  }
  match.parts = PartsAt(hashes, match);
  return match;
}

bool PrefixCache::FindPages(const PrefixHashes& hashes, int32_t length, PageTables& tables) const {
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    if (!GroupIsUsed(group_idx)) continue;
    const int32_t tokens = layout_.tokens_per_page[group_idx];
    int32_t block = FirstBlockInReach(plan_, layout_, group_idx, length);
    tables[group_idx].first_block = block;
    for (; block * tokens < length; ++block) {
      const int32_t wanted = std::min(tokens, length - block * tokens);
      const KeptPages::Found found = kept_.Find(group_idx, block, hashes, wanted);
      if (found.num_tokens < wanted) return false;
      tables[group_idx].pages.push_back(found.page);
    }
  }
  return true;
}

void PrefixCache::Keep(int group_idx, int32_t block, PageIndex page, const PrefixHashes& hashes,
                       int32_t end, uint64_t writer, std::span<const int32_t> tokens) {
  if (!pool_.is_kept(page)) claims_[page] = {};
  if (!kept_.Keep(group_idx, block, page, hashes, end, writer, tokens)) {
    points_.erase(page);
    return;
  }
  kept_.DropCovered(page, [&](PageIndex covered) { MovePoints(covered, page); });
}

void PrefixCache::MovePoints(PageIndex from, PageIndex to) {
  if (pool_.claim(from) > pool_.claim(to)) {
    pool_.SetClaim(to, pool_.claim(from));
    claims_[to] = claims_[from];
  }
  const auto it = points_.find(from);
  if (it == points_.end()) return;
  std::vector<Point> moved = std::move(it->second);
  points_.erase(it);
  std::vector<Point>& points = points_[to];
  points.insert(points.end(), moved.begin(), moved.end());
}

void PrefixCache::Drop(PageIndex page) {
  points_.erase(page);
  kept_.Drop(page);
}

void PrefixCache::DropWrittenBy(uint64_t writer) {
  for (PageIndex page = 1; page < pool_.num_pages(); ++page) {
    if (pool_.is_kept(page) && kept_.writer(page) == writer) Drop(page);
  }
}

PrefixCache::Point* PrefixCache::FindPoint(const PrefixHashes& hashes, int32_t length,
                                           PageIndex* page) const {
  const int group_idx = GroupIsUsed(kSlidingGroup) ? kSlidingGroup : kFullGroup;
  const int32_t tokens = layout_.tokens_per_page[group_idx];
  const int32_t block = (length - 1) / tokens;
  const int32_t wanted = length - block * tokens;
  const KeptPages::Found found = kept_.Find(group_idx, block, hashes, wanted);
  if (found.num_tokens < wanted) return nullptr;
  if (page != nullptr) *page = found.page;
  const auto it = points_.find(found.page);
  if (it == points_.end()) return nullptr;
  for (Point& point : it->second) {
    if (point.length == length) return &point;
  }
  return nullptr;
}

bool PrefixCache::IsPoint(const PrefixHashes& hashes, int32_t length) const {
  return FindPoint(hashes, length) != nullptr;
}

void PrefixCache::ClaimPage(PageIndex page, uint64_t point) {
  Claim& claim = claims_[page];
  if (claim.point != point) claim = {point, pool_.claim(page)};
  pool_.SetClaim(page, pool_.NextClaim());
}

PrefixCache::Point* PrefixCache::ClaimPoint(const PrefixHashes& hashes, int32_t length) {
  PageTables tables;
  if (length <= 0 || !FindPages(hashes, length, tables)) return nullptr;
  PageIndex last_page = kScratchPage;
  Point* point = FindPoint(hashes, length, &last_page);
  if (point == nullptr) {
    point = &points_[last_page].emplace_back();
    *point = {.id = ++last_point_, .length = length};
  }
  // The first blocks get the latest keys: nothing goes before what only makes sense behind it.
  for (const PageTable& table : tables) {
    for (auto page = table.pages.rbegin(); page != table.pages.rend(); ++page) {
      ClaimPage(*page, point->id);
    }
  }
  return point;
}

void PrefixCache::MarkPoint(const PrefixHashes& hashes, int32_t length) {
  ClaimPoint(hashes, length);
}

void PrefixCache::UsePoint(const PrefixHashes& hashes, int32_t length, bool prompts_part,
                           uint64_t user) {
  const bool is_new = !IsPoint(hashes, length);
  Point* point = ClaimPoint(hashes, length);
  if (point == nullptr) return;
  if (is_new && prompts_part) ++point->num_users;
  if (point->last_user != user) ++point->num_users;
  point->last_user = user;
}

void PrefixCache::LeavePoint(const PrefixHashes& hashes, int32_t length) {
  PageIndex last_page = kScratchPage;
  const Point* point = FindPoint(hashes, length, &last_page);
  if (point == nullptr || point->num_users > 1) return;
  const uint64_t id = point->id;
  std::vector<Point>& points = points_.at(last_page);
  std::erase_if(points, [&](const Point& other) { return other.id == id; });
  if (points.empty()) points_.erase(last_page);
  if (!GroupIsUsed(kSlidingGroup)) return;
  const int32_t tokens = layout_.tokens_per_page[kSlidingGroup];
  // The full pages are the later point's too.
  int32_t block = FirstBlockInReach(plan_, layout_, kSlidingGroup, length);
  for (; block * tokens < length; ++block) {
    const int32_t wanted = std::min(tokens, length - block * tokens);
    const PageIndex page = kept_.Find(kSlidingGroup, block, hashes, wanted).page;
    if (page == kScratchPage || claims_[page].point != id) continue;
    pool_.SetClaim(page, claims_[page].before);
    claims_[page] = {};
  }
}

bool PrefixCache::EvictOne() {
  if (pool_.num_reclaimable() == 0) return false;
  Drop(pool_.FirstToGo());
  ++num_evicted_;
  return true;
}

bool PrefixCache::MakeRoom(EvictionKey key) {
  if (pool_.num_free() > 0) return true;
  return pool_.num_reclaimable() > 0 && pool_.FirstKey() < key && EvictOne();
}

void PrefixCache::Clear() {
  PrefixCacheObserver* const observer = kept_.observer();
  kept_.set_observer(nullptr);  // It is told of all pages at once.
  for (PageIndex page = 1; page < pool_.num_pages(); ++page) {
    if (pool_.is_kept(page)) Drop(page);
  }
  kept_.set_observer(observer);
  if (observer != nullptr) observer->Cleared();
}

void PrefixCache::CheckIntegrity() const {
  kept_.CheckIntegrity();
  for (const auto& [page, points] : points_) {
    CHECK(pool_.is_kept(page)) << page;
    CHECK(!points.empty()) << page;
    const int32_t start = kept_.block(page) * layout_.tokens_per_page[kept_.group(page)];
    for (const Point& point : points) {
      CHECK(point.length > start && point.length <= start + kept_.num_tokens(page)) << page;
    }
  }
}

}  // namespace lapidary
