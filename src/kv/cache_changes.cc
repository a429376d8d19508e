#include "kv/cache_changes.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/memory_reserve.h"

namespace lapidary {

size_t CacheChanges::NumBytes() const {
  size_t num_bytes = changes.size() * sizeof(Change) + tokens.size() * sizeof(int32_t) +
                     media.size() * sizeof(MediaDigest);
  for (const Origin& origin : origins) num_bytes += sizeof(Origin) + origin.salt.size();
  return num_bytes;
}

void CacheChanges::Clear() {
  cleared = false;
  changes.clear();
  tokens.clear();
  media.clear();
  origins.clear();
}

void CacheChanges::Append(const CacheChanges& later) {
  if (later.cleared) {
    Clear();
    cleared = true;
  }
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(changes, later.changes);
  append(tokens, later.tokens);
  append(media, later.media);
  append(origins, later.origins);
}

void CacheChangeQueue::Lose() noexcept {
  seen_ = {};
  bool must_wake = false;
  {
    const std::lock_guard lock(mutex_);
    handed_over_ = {};
    handed_over_.cleared = true;
    ++num_losses_;
    must_wake = std::exchange(must_wake_, false);
  }
  if (must_wake && wake_) wake_();
}

void CacheChangeQueue::PageKept(const KeptPageNews& news) noexcept {
  if (seen_.tokens.size() * sizeof(int32_t) > max_bytes_) return Lose();
  try {
    CacheChanges::Change& change = seen_.changes.emplace_back();
    change.before = news.hashes.Of(news.begin);
    change.page = news.page;
    change.block = news.block;
    change.num_before = static_cast<uint16_t>(news.begin - news.start);
    change.num_tokens = static_cast<uint16_t>(news.tokens.size());
    change.group_idx = static_cast<int8_t>(news.group_idx);
    change.is_kept = true;
    seen_.tokens.insert(seen_.tokens.end(), news.tokens.begin(), news.tokens.end());
    const PrefixIdentity& identity = news.hashes.identity();
    if (!identity.media.empty()) {
      auto medium =
          std::partition_point(identity.media.begin(), identity.media.end(),
                               [&](const MediaDigest& other) { return other.end() <= news.start; });
      for (; medium != identity.media.end() && medium->position < news.end(); ++medium) {
        seen_.media.push_back(*medium);
        ++change.num_media;
      }
    }
    if (news.block == 0 && news.group_idx == kFullGroup) {
      seen_.origins.push_back({identity.adapter, identity.salt});
      change.has_origin = true;
    }
  } catch (const std::bad_alloc&) {
    Lose();
  }
}

void CacheChangeQueue::PageDropped(PageIndex page) noexcept {
  if (seen_.changes.size() * sizeof(CacheChanges::Change) > max_bytes_) return Lose();
  try {
    seen_.changes.emplace_back().page = page;
  } catch (const std::bad_alloc&) {
    Lose();
  }
}

void CacheChangeQueue::Cleared() noexcept {
  seen_.Clear();
  seen_.cleared = true;
}

void CacheChangeQueue::HandOverAll() noexcept {
  if (seen_.empty()) return;
  bool must_wake = false;
  bool is_lost = false;
  {
    const std::lock_guard lock(mutex_);
    if (handed_over_.empty()) {
      std::swap(seen_, handed_over_);
    } else if (handed_over_.NumBytes() + seen_.NumBytes() > max_bytes_) {
      is_lost = true;
    } else {
      const TaskScope without_reserve;  // What is lost harms no request.
      try {
        handed_over_.Append(seen_);
      } catch (const std::bad_alloc&) {
        is_lost = true;
      }
    }
    was_taken_.store(false, std::memory_order_relaxed);
    must_wake = std::exchange(must_wake_, false);
  }
  seen_.Clear();
  if (is_lost) Lose();
  if (must_wake && wake_) wake_();
}

bool CacheChangeQueue::Take(CacheChanges* changes) {
  changes->Clear();
  const std::lock_guard lock(mutex_);
  was_taken_.store(true, std::memory_order_relaxed);
  if (handed_over_.empty()) {
    must_wake_ = true;
    return false;
  }
  std::swap(handed_over_, *changes);
  return true;
}

uint64_t CacheChangeQueue::num_losses() const {
  const std::lock_guard lock(mutex_);
  return num_losses_;
}

}  // namespace lapidary
