// Two priority queues for BPE: both hand out (rank, position) pairs, lowest rank first and leftmost
// first among equal ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "text/flat_map.h"

namespace lapidary {

struct MergeCandidate {
  uint32_t rank;
  uint32_t pos;
};

// A binary heap: best while it fits the cache.
class HeapMergeQueue {
 public:
  void Push(MergeCandidate candidate) {
    heap_.push_back(uint64_t{candidate.rank} << 32 | candidate.pos);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  // False when empty. `upcoming(pos)` is told of a position that is likely to come soon.
  template <typename Upcoming>
  bool Pop(MergeCandidate* candidate, const Upcoming&) {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    *candidate = {static_cast<uint32_t>(heap_.back() >> 32), static_cast<uint32_t>(heap_.back())};
    heap_.pop_back();
    return true;
  }

 private:
  std::vector<uint64_t> heap_;  // rank above position
};

// One bucket per rank, and a heap of the ranks that have entries. Within a rank, positions mostly
// arrive in order, since the text is walked left to right for each rank; those go to the end of a
// plain array, the others to a small heap. Long texts are then read nearly in sequence, where a
// heap of millions of entries misses the cache at every level. The worst case stays O(log n) per
// entry.
class BucketMergeQueue {
 public:
  void Push(MergeCandidate candidate) {
    uint32_t idx = bucket_of_rank_.Find(candidate.rank);
    if (idx == FlatMap::kNotFound) {
      idx = static_cast<uint32_t>(buckets_.size());
      bucket_of_rank_.Set(candidate.rank, idx);
      buckets_.emplace_back();
    }
    Bucket& bucket = buckets_[idx];
    if (bucket.empty()) active_.push(uint64_t{candidate.rank} << 32 | idx);
    if (bucket.ordered.empty() || candidate.pos > bucket.ordered.back()) {
      bucket.ordered.push_back(candidate.pos);
    } else {
      bucket.late.push(candidate.pos);
    }
  }

  // As above; here the hint is right unless a lower rank turns up first.
  template <typename Upcoming>
  bool Pop(MergeCandidate* candidate, const Upcoming& upcoming) {
    if (active_.empty()) return false;
    Bucket& bucket = buckets_[static_cast<uint32_t>(active_.top())];
    candidate->rank = static_cast<uint32_t>(active_.top() >> 32);
    const bool has_ordered = bucket.next < bucket.ordered.size();
    if (has_ordered && (bucket.late.empty() || bucket.ordered[bucket.next] < bucket.late.top())) {
      candidate->pos = bucket.ordered[bucket.next++];
      if (bucket.next + kLookAhead < bucket.ordered.size()) {
        upcoming(bucket.ordered[bucket.next + kLookAhead]);
      }
    } else {
      candidate->pos = bucket.late.top();
      bucket.late.pop();
    }
    if (bucket.empty()) {
      bucket.ordered.clear();
      bucket.next = 0;
      active_.pop();
    }
    return true;
  }

 private:
  // Far enough to hide a trip to memory behind this many merges.
  static constexpr size_t kLookAhead = 16;

  template <typename T>
  using MinHeap = std::priority_queue<T, std::vector<T>, std::greater<>>;

  struct Bucket {
    std::vector<uint32_t> ordered;  // ascending
    size_t next = 0;                // ordered[0, next) have been handed out
    MinHeap<uint32_t> late;

    bool empty() const { return next == ordered.size() && late.empty(); }
  };

  FlatMap bucket_of_rank_;
  std::vector<Bucket> buckets_;
  MinHeap<uint64_t> active_;  // rank above bucket index, for every bucket that is not empty
};

}  // namespace lapidary
