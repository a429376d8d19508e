#include "kv/resumable_blocks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lapidary {
namespace {

// What servers agree on without a word.
constexpr uint64_t kNoSeed = 0;

int32_t RoundUp(int32_t value, int32_t step) { return (value + step - 1) / step * step; }

}  // namespace

ResumableBlocks::Page& ResumableBlocks::PageOf(PageIndex index) {
  if (index >= std::ssize(pages_)) pages_.resize(index + 1);
  return pages_[index];
}

ResumableBlocks::Place* ResumableBlocks::PlaceOf(const PrefixHash& hash, int32_t block) {
  const auto [it, is_new] = places_.try_emplace(hash);
  Place& place = it->second;
  if (is_new) {
    place.hash = hash;
    place.block = block;
    place.is_reachable = block == 0;
  }
  return &place;
}

ResumableBlocks::Node* ResumableBlocks::FindNode(uint64_t low) {
  const auto it = nodes_.find(low);
  return it == nodes_.end() ? nullptr : &it->second;
}

void ResumableBlocks::EraseIfEmpty(uint64_t low) {
  const auto it = nodes_.find(low);
  if (it != nodes_.end() && it->second.is_empty()) nodes_.erase(it);
}

std::vector<BlockEvent> ResumableBlocks::Apply(const CacheChanges& changes) {
  if (changes.cleared) Reset();
  Reader reader{changes.tokens.data(), changes.media.data(), changes.origins.data()};
  for (const CacheChanges::Change& change : changes.changes) {
    if (!change.is_kept) {
      Drop(change.page);
      continue;
    }
    Keep(change, reader);
    reader.tokens += change.num_tokens;
    reader.media += change.num_media;
    reader.origin += change.has_origin ? 1 : 0;
  }
  UpdateReachable();
  UpdateRuns();
  UpdateSupports();
  std::vector<BlockEvent> events = Tell(changes.cleared);
  EraseUnused();
  return events;
}

void ResumableBlocks::Reset() {
  pages_.clear();
  places_.clear();
  nodes_.clear();
  num_blocks_ = 0;
}

void ResumableBlocks::Keep(const CacheChanges::Change& change, const Reader& reader) {
  const int32_t tokens_per_page = layout_.tokens_per_page[change.group_idx];
  const int32_t start = change.block * tokens_per_page;
  const int32_t begin = start + change.num_before;
  if (begin == start) {
    Drop(change.page);  // Where it was known.
    Page& fresh = PageOf(change.page);
    fresh.group_idx = change.group_idx;
    fresh.block = change.block;
    fresh.start = start;
    fresh.before = change.before;
    fresh.run_first = -1;
    fresh.lows.reserve(tokens_per_page);
  }
  Page& page = PageOf(change.page);
  // More of a page that was lost on the way.
  if (page.group_idx != change.group_idx || page.end() != begin) return;
  page.media.assign(reader.media, reader.media + change.num_media);
  if (change.has_origin) page.origin = *reader.origin;
  const bool is_full = change.group_idx == kFullGroup;
  const int32_t num_before = static_cast<int32_t>(page.lows.size());
  const int32_t end = begin + change.num_tokens;
  PrefixHasher hasher(change.before);
  auto medium = page.media.begin();
  while (medium != page.media.end() && medium->position < begin) ++medium;
  for (int32_t position = begin; position < end; ++position) {
    if (!is_full && position > start && position % full_tokens() == 0) {
      Place* crossed = PlaceOf(hasher.hash(), position / full_tokens());
      crossed->crossing.push_back(change.page);
      page.crossed.push_back(crossed);
    }
    if (medium != page.media.end() && medium->position == position) hasher.Add(*medium++);
    hasher.Add(reader.tokens[position - begin]);
    page.lows.push_back(hasher.hash().low);
  }
  page.after = hasher.hash();
  if (is_full) {
    page.tokens.insert(page.tokens.end(), reader.tokens, reader.tokens + change.num_tokens);
    KeepFull(change.page, num_before);
  } else {
    KeepSliding(change.page, num_before);
  }
}

void ResumableBlocks::KeepFull(PageIndex index, int32_t num_before) {
  Page& page = pages_[index];
  if (num_before == 0) {
    page.place = PlaceOf(page.before, page.block);
    page.place->full_pages.push_back(index);
  }
  const int32_t old_end = page.start + num_before;
  for (int32_t at = RoundUp(old_end, sliding_tokens()); at <= page.end(); at += sliding_tokens()) {
    Node& node = NodeOf(LowAt(page, at));
    if (at < page.end()) node.going_on.push_back(index);
    if (at > old_end) node.covering.push_back(index);
    if (node.is_empty()) EraseIfEmpty(LowAt(page, at));
  }
  if (std::ssize(page.lows) == full_tokens()) {
    Place* child = PlaceOf(page.after, page.block + 1);
    CHECK_EQ(child->page, kScratchPage) << "two pages have the same block";
    child->page = index;
    child->parent = page.place;
    page.child = child;
    if (child->num_supports > 0) AddSupports(page.place, 1);
    dirty_places_.push_back(child);
  }
  MarkCovered(index);
}

void ResumableBlocks::KeepSliding(PageIndex index, int32_t num_before) {
  Page& page = pages_[index];
  if (num_before == 0) {
    NodeOf(page.before.low).starts.push_back(index);
    MarkRun(index);
  }
  if (std::ssize(page.lows) == sliding_tokens()) {
    Node& node = NodeOf(page.after.low);
    node.before = index;
    for (const PageIndex next : node.starts) MarkRun(next);
  }
  MarkSupport(index);
}

void ResumableBlocks::Drop(PageIndex index) {
  if (index >= std::ssize(pages_)) return;
  Page& page = pages_[index];
  if (page.group_idx < 0) return;
  if (page.group_idx == kFullGroup) {
    DropFull(index);
  } else {
    DropSliding(index);
  }
  // What waits for an update finds nothing to do.
  const bool is_run_dirty = page.is_run_dirty;
  const bool is_support_dirty = page.is_support_dirty;
  page = {};
  page.is_run_dirty = is_run_dirty;
  page.is_support_dirty = is_support_dirty;
}

void ResumableBlocks::DropFull(PageIndex index) {
  Page& page = pages_[index];
  MarkCovered(index);
  const int32_t first = RoundUp(page.start, sliding_tokens());
  for (int32_t at = first; at <= page.end(); at += sliding_tokens()) {
    Node* node = FindNode(LowAt(page, at));
    if (node == nullptr) continue;
    std::erase(node->going_on, index);
    std::erase(node->covering, index);
    EraseIfEmpty(LowAt(page, at));
  }
  std::erase(page.place->full_pages, index);
  maybe_unused_.push_back(page.place->hash);
  if (page.child == nullptr) return;
  if (page.child->num_supports > 0) AddSupports(page.place, -1);
  page.child->page = kScratchPage;
  page.child->parent = nullptr;
  dirty_places_.push_back(page.child);
  maybe_unused_.push_back(page.child->hash);
}

void ResumableBlocks::DropSliding(PageIndex index) {
  Page& page = pages_[index];
  AddSupports(page.support, -1);
  for (Place* crossed : page.crossed) {
    std::erase(crossed->crossing, index);
    maybe_unused_.push_back(crossed->hash);
  }
  std::erase(NodeOf(page.before.low).starts, index);
  EraseIfEmpty(page.before.low);
  if (std::ssize(page.lows) < sliding_tokens()) return;
  Node& node = NodeOf(page.after.low);
  node.before = kScratchPage;
  for (const PageIndex next : node.starts) MarkRun(next);
  EraseIfEmpty(page.after.low);
}

void ResumableBlocks::MarkRun(PageIndex index) {
  if (std::exchange(pages_[index].is_run_dirty, true)) return;
  dirty_runs_.push_back(index);
}

void ResumableBlocks::MarkSupport(PageIndex index) {
  if (std::exchange(pages_[index].is_support_dirty, true)) return;
  dirty_supports_.push_back(index);
}

void ResumableBlocks::MarkCovered(PageIndex full_page) {
  Page& page = pages_[full_page];
  const auto mark_newest = [&](const std::vector<PageIndex>& sliding) {
    const auto num = std::min<ptrdiff_t>(std::ssize(sliding), kMaxCompared);
    std::for_each(sliding.end() - num, sliding.end(), [&](PageIndex other) { MarkSupport(other); });
  };
  const int32_t first = RoundUp(page.start, sliding_tokens());
  for (int32_t at = first; at <= page.end(); at += sliding_tokens()) {
    const Node* node = FindNode(LowAt(page, at));
    if (node == nullptr) continue;
    if (at > page.start && node->before != kScratchPage) MarkSupport(node->before);
    if (at < page.end()) mark_newest(node->starts);
  }
  mark_newest(page.place->crossing);
  for (const PageIndex dependent : std::exchange(page.dependents, {})) MarkSupport(dependent);
}

void ResumableBlocks::UpdateReachable() {
  while (!dirty_places_.empty()) {
    Place* place = dirty_places_.back();
    dirty_places_.pop_back();
    const bool is_reachable =
        place->block == 0 || (place->page != kScratchPage && place->parent->is_reachable);
    if (is_reachable == place->is_reachable) continue;
    place->is_reachable = is_reachable;
    // Without windows every position can be resumed from.
    if (!GroupIsUsed(kSlidingGroup)) AddSupports(place, is_reachable ? 1 : -1);
    for (const PageIndex page : place->full_pages) {
      MarkCovered(page);
      if (pages_[page].child != nullptr) dirty_places_.push_back(pages_[page].child);
    }
  }
}

void ResumableBlocks::UpdateRuns() {
  // Grows meanwhile.
  for (size_t idx = 0; idx < dirty_runs_.size(); ++idx) {
    const PageIndex index = dirty_runs_[idx];
    Page& page = pages_[index];
    page.is_run_dirty = false;
    if (page.group_idx != kSlidingGroup) continue;
    int32_t run_first = page.block;
    if (const PageIndex before = NodeOf(page.before.low).before; before != kScratchPage) {
      run_first = pages_[before].run_first;
      // One that is not known yet is in the list, and comes back to this one.
      if (run_first < 0) run_first = page.block;
    }
    // More than any position in it needs is as good.
    run_first = std::max(run_first, FirstNeeded(page.start + 1));
    if (run_first == page.run_first) continue;
    page.run_first = run_first;
    MarkSupport(index);
    if (std::ssize(page.lows) < sliding_tokens()) continue;
    for (const PageIndex next : NodeOf(page.after.low).starts) MarkRun(next);
  }
  dirty_runs_.clear();
}

ResumableBlocks::Coverage ResumableBlocks::FindAgreeing(const Page& page, int32_t from,
                                                        const std::vector<PageIndex>& full) const {
  Coverage best{.end = from};
  const auto num = std::min<ptrdiff_t>(std::ssize(full), kMaxCompared);
  for (auto it = full.rbegin(); it != full.rbegin() + num && best.end < page.end(); ++it) {
    const Page& other = pages_[*it];
    if (!other.place->is_reachable) continue;
    // Once two prefixes have parted their hashes never agree again.
    int32_t low = from;
    int32_t high = std::min(page.end(), other.end());
    while (low < high) {
      const int32_t middle = low + (high - low + 1) / 2;
      if (LowAt(page, middle) == LowAt(other, middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    if (low <= best.end) continue;
    const bool ends_block = low == other.start + full_tokens();
    best = {.end = low, .place = ends_block ? other.child : other.place, .page = *it};
  }
  return best;
}

ResumableBlocks::Coverage ResumableBlocks::FindCoverage(PageIndex index) {
  const Page& page = pages_[index];
  if (std::ssize(page.lows) == sliding_tokens()) {
    const Node* node = FindNode(page.after.low);
    if (node != nullptr && !node->covering.empty()) {
      const PageIndex covering = node->covering.back();
      const Page& full = pages_[covering];
      if (full.place->is_reachable) {
        const bool ends_block = page.end() == full.start + full_tokens();
        return {.end = page.end(), .place = ends_block ? full.child : full.place, .page = covering};
      }
    }
  }
  Coverage coverage{.end = page.start};
  const Node* node = FindNode(page.before.low);
  const std::vector<PageIndex>* candidates = &node->going_on;
  while (true) {
    const Coverage more = FindAgreeing(page, coverage.end, *candidates);
    if (more.end == coverage.end) return coverage;
    coverage = more;
    std::vector<PageIndex>& dependents = pages_[more.page].dependents;
    if (std::ranges::find(dependents, index) == dependents.end()) dependents.push_back(index);
    if (more.end == page.end() || more.end % full_tokens() != 0) return coverage;
    candidates = &more.place->full_pages;
  }
}

ResumableBlocks::Place* ResumableBlocks::FindSupport(PageIndex index) {
  const Coverage coverage = FindCoverage(index);
  const Page& page = pages_[index];
  int32_t length = coverage.end;
  for (const MediaDigest& medium : page.media) {
    if (medium.is_whole && medium.position < length && length < medium.end()) {
      length = medium.position;
    }
  }
  // Of a position at its start the page before it has the window.
  if (length <= page.start || FirstNeeded(length) < page.run_first) return nullptr;
  Place* place = coverage.place;
  while (place->block * full_tokens() > length) place = place->parent;
  return place;
}

void ResumableBlocks::UpdateSupports() {
  for (const PageIndex index : dirty_supports_) {
    Page& page = pages_[index];
    page.is_support_dirty = false;
    if (page.group_idx != kSlidingGroup) continue;
    Place* const support = FindSupport(index);
    if (support == page.support) continue;
    AddSupports(support, 1);
    AddSupports(std::exchange(page.support, support), -1);
  }
  dirty_supports_.clear();
}

void ResumableBlocks::AddSupports(Place* place, int delta) {
  while (place != nullptr) {
    const bool had_some = place->num_supports > 0;
    place->num_supports += delta;
    CHECK_GE(place->num_supports, 0);
    const bool has_some = place->num_supports > 0;
    if (had_some == has_some) return;
    if (!std::exchange(place->is_touched, true)) touched_.push_back(place);
    delta = has_some ? 1 : -1;
    place = place->parent;
  }
}

void ResumableBlocks::Name(Place& place) const {
  const Page& page = pages_[place.page];
  PrefixHash before = place.parent->unseeded;
  if (page.block == 0) {
    const PrefixIdentity origin{.adapter = page.origin.adapter, .salt = page.origin.salt};
    before = PrefixHashes(kNoSeed, origin).Of(0);
  }
  PrefixHasher hasher(before);
  auto medium = page.media.begin();
  while (medium != page.media.end() && medium->position < page.start) ++medium;
  for (size_t idx = 0; idx < page.tokens.size(); ++idx) {
    const int32_t position = page.start + static_cast<int32_t>(idx);
    if (medium != page.media.end() && medium->position == position) hasher.Add(*medium++);
    hasher.Add(page.tokens[idx]);
  }
  place.unseeded = hasher.hash();
}

std::vector<BlockEvent> ResumableBlocks::Tell(bool cleared) {
  std::vector<BlockEvent> events;
  if (cleared) events.push_back({.kind = BlockEvent::Kind::kCleared});
  std::vector<Place*> stored;
  std::vector<Place*> removed;
  for (Place* place : std::exchange(touched_, {})) {
    place->is_touched = false;
    const bool counts = place->num_supports > 0 && place->block > 0;
    if (counts == std::exchange(place->is_told, counts)) continue;
    (counts ? stored : removed).push_back(place);
  }
  num_blocks_ += static_cast<int>(stored.size()) - static_cast<int>(removed.size());
  if (!removed.empty()) {
    std::ranges::stable_sort(removed, std::ranges::greater(), &Place::block);
    BlockEvent& event = events.emplace_back();
    event.kind = BlockEvent::Kind::kRemoved;
    for (const Place* place : removed) event.hashes.push_back(place->unseeded.low);
  }
  std::ranges::stable_sort(stored, std::ranges::less(), &Place::block);
  std::unordered_map<const Place*, size_t> event_of;  // by the last block of a run
  for (Place* place : stored) {
    Name(*place);
    size_t event_idx = events.size();
    if (const auto run = event_of.find(place->parent); run != event_of.end()) {
      event_idx = run->second;
      event_of.erase(run);
    } else {
      BlockEvent& event = events.emplace_back();
      if (place->parent->block > 0) event.parent = place->parent->unseeded.low;
    }
    event_of.emplace(place, event_idx);
    BlockEvent& event = events[event_idx];
    const Page& page = pages_[place->page];
    event.hashes.push_back(place->unseeded.low);
    event.tokens.insert(event.tokens.end(), page.tokens.begin(), page.tokens.end());
    event.extras.push_back({.media = page.media, .salt = page.origin.salt, .start = page.start});
  }
  return events;
}

void ResumableBlocks::EraseUnused() {
  for (const PrefixHash& hash : std::exchange(maybe_unused_, {})) {
    const auto it = places_.find(hash);
    if (it == places_.end()) continue;
    const Place& place = it->second;
    if (place.page != kScratchPage || !place.full_pages.empty() || !place.crossing.empty())
      continue;
    CHECK_EQ(place.num_supports, 0);
    places_.erase(it);
  }
}

}  // namespace lapidary
