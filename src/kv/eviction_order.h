// The pages that could be given up, lowest key first: a binary heap that knows where each page is.
// Integers only.
#pragma once

#include <cstdint>
#include <vector>

namespace lapidary {

class EvictionOrder {
 public:
  explicit EvictionOrder(int num_pages) : place_(num_pages, -1), keys_(num_pages, 0) {}

  int size() const { return static_cast<int>(heap_.size()); }
  bool contains(int32_t page) const { return place_[page] >= 0; }
  int64_t key(int32_t page) const { return keys_[page]; }
  // Of the lowest key; only if there is one.
  int32_t first() const { return heap_.front(); }

  // Adds a page, or changes its key.
  void Set(int32_t page, int64_t key);
  void Remove(int32_t page);

 private:
  void Put(int32_t page, int place) {
    heap_[place] = page;
    place_[page] = place;
  }
  // Moves the page at `place` to where its key belongs.
  void Settle(int place);

  std::vector<int32_t> heap_;
  std::vector<int32_t> place_;  // by page; -1: not in the heap
  std::vector<int64_t> keys_;   // by page
};

}  // namespace lapidary
