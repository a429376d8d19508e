// A cache of encoded images and audio, by content, within a budget of bytes.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>

#include "towers/content_digest.h"
#include "towers/encoded_medium.h"

namespace lapidary {

// Every method may be called from many threads at once.
class EncodedMediaCache {
 public:
  struct Stats {
    uint64_t num_hits = 0;
    uint64_t num_misses = 0;
    int64_t num_bytes = 0;
  };

  explicit EncodedMediaCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Counts as a use.
  std::optional<EncodedMedium> Find(const ContentDigest& key);
  // The least recently used make room; what is larger than the whole budget is not kept.
  void Put(const ContentDigest& key, const EncodedMedium& medium);
  Stats stats() const;

 private:
  struct Kept {
    EncodedMedium medium;
    std::list<ContentDigest>::iterator use;
  };

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::map<ContentDigest, Kept> kept_;  // guarded by mutex_, as is the rest
  std::list<ContentDigest> by_use_;     // the latest first
  Stats stats_;
};

}  // namespace lapidary
