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

// One bucket per rank, and a heap of the ranks that have entries. A bucket's positions arrive as a
// few ascending runs, one for every pass over the text that made such pairs: they are appended as
// they come and merged when the rank's turn comes. Only what arrives below the place already
// reached goes to a small heap. Long texts are then read nearly in sequence, where a heap of
// millions of entries misses the cache at every level. The worst case stays O(log n) per entry.
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
    const bool is_in_order = bucket.positions.empty() || candidate.pos > bucket.positions.back();
    if (!is_in_order && bucket.is_open) {
      bucket.late.push(candidate.pos);
      return;
    }
    if (!is_in_order) bucket.run_begins.push_back(bucket.positions.size());
    bucket.positions.push_back(candidate.pos);
  }

  // As above; here the hint is right unless a lower rank turns up first.
  template <typename Upcoming>
  bool Pop(MergeCandidate* candidate, const Upcoming& upcoming) {
    if (active_.empty()) return false;
    Bucket& bucket = buckets_[static_cast<uint32_t>(active_.top())];
    if (!bucket.is_open) bucket.Open();
    candidate->rank = static_cast<uint32_t>(active_.top() >> 32);
    const bool has_ordered = bucket.next < bucket.positions.size();
    if (has_ordered && (bucket.late.empty() || bucket.positions[bucket.next] < bucket.late.top())) {
      candidate->pos = bucket.positions[bucket.next++];
      if (bucket.next + kLookAhead < bucket.positions.size()) {
        upcoming(bucket.positions[bucket.next + kLookAhead]);
      }
    } else {
      candidate->pos = bucket.late.top();
      bucket.late.pop();
    }
    if (bucket.empty()) {
      bucket.positions.clear();
      bucket.next = 0;
      bucket.is_open = false;
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
    std::vector<uint32_t> positions;  // ascending once open; before that in ascending runs
    std::vector<size_t> run_begins;   // of every run but the first
    size_t next = 0;                  // positions[0, next) have been handed out
    bool is_open = false;             // being handed out
    MinHeap<uint32_t> late;

    bool empty() const { return next == positions.size() && late.empty(); }

    // Merges neighbouring runs until one is left.
    void Open() {
      is_open = true;
      while (!run_begins.empty()) {
        std::vector<size_t> merged;
        size_t begin = 0;
        for (size_t run = 0; run < run_begins.size(); run += 2) {
          const bool has_next = run + 1 < run_begins.size();
          const size_t end = has_next ? run_begins[run + 1] : positions.size();
          std::inplace_merge(positions.begin() + begin, positions.begin() + run_begins[run],
                             positions.begin() + end);
          if (has_next) merged.push_back(end);
          begin = end;
        }
        run_begins = std::move(merged);
      }
    }
  };

  FlatMap bucket_of_rank_;
  std::vector<Bucket> buckets_;
  MinHeap<uint64_t> active_;  // rank above bucket index, for every bucket that is not empty
};

}  // namespace lapidary
