// Two priority queues for BPE: both hand out (rank, position) pairs, lowest rank first and leftmost
// first among equal ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <vector>

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

  bool Pop(MergeCandidate* candidate) {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    *candidate = {static_cast<uint32_t>(heap_.back() >> 32), static_cast<uint32_t>(heap_.back())};
    heap_.pop_back();
    return true;
  }

 private:
  std::vector<uint64_t> heap_;  // rank above position
};

// One bucket per rank. Within a rank, positions mostly arrive in order, since the text is walked
// left to right for each rank; those go to the end of a plain array, the others to a small heap.
// Long texts are then read nearly in sequence, where a heap of millions of entries misses the cache
// at every level. The worst case stays O(log n) per entry.
class BucketMergeQueue {
 public:
  void Push(MergeCandidate candidate) {
    Bucket& bucket = buckets_[candidate.rank];
    if (bucket.ordered.empty() || candidate.pos > bucket.ordered.back()) {
      bucket.ordered.push_back(candidate.pos);
    } else {
      bucket.late.push(candidate.pos);
    }
  }

  bool Pop(MergeCandidate* candidate) {
    if (buckets_.empty()) return false;
    auto& [rank, bucket] = *buckets_.begin();
    const bool has_ordered = bucket.next < bucket.ordered.size();
    candidate->rank = rank;
    if (has_ordered && (bucket.late.empty() || bucket.ordered[bucket.next] < bucket.late.top())) {
      candidate->pos = bucket.ordered[bucket.next++];
    } else {
      candidate->pos = bucket.late.top();
      bucket.late.pop();
    }
    if (bucket.next == bucket.ordered.size() && bucket.late.empty()) {
      buckets_.erase(buckets_.begin());
    }
    return true;
  }

 private:
  // Never left empty: Pop() removes a bucket with its last position.
  struct Bucket {
    std::vector<uint32_t> ordered;  // ascending
    size_t next = 0;                // ordered[0, next) have been handed out
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> late;
  };

  std::map<uint32_t, Bucket> buckets_;
};

}  // namespace lapidary
