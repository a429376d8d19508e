#include "towers/encoded_media_cache.h"

namespace lapidary {
namespace {

int64_t NumBytes(const EncodedMedium& medium) {
  return static_cast<int64_t>(medium.rows->size() * sizeof(float));
}

}  // namespace

std::optional<EncodedMedium> EncodedMediaCache::Find(const ContentDigest& key) {
  const std::lock_guard lock(mutex_);
  const auto it = kept_.find(key);
  if (it == kept_.end()) {
    ++stats_.num_misses;
    return std::nullopt;
  }
  ++stats_.num_hits;
  by_use_.splice(by_use_.begin(), by_use_, it->second.use);
  return it->second.medium;
}

void EncodedMediaCache::Put(const ContentDigest& key, const EncodedMedium& medium) {
  const std::lock_guard lock(mutex_);
  const int64_t num_bytes = NumBytes(medium);
  if (num_bytes > max_bytes_ || kept_.contains(key)) return;
  while (stats_.num_bytes + num_bytes > max_bytes_) {
    const auto oldest = kept_.find(by_use_.back());
    stats_.num_bytes -= NumBytes(oldest->second.medium);
    kept_.erase(oldest);
    by_use_.pop_back();
  }
  by_use_.push_front(key);
  kept_.emplace(key, Kept{medium, by_use_.begin()});
  stats_.num_bytes += num_bytes;
}

EncodedMediaCache::Stats EncodedMediaCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace lapidary
