#include "kv/eviction_order.h"

#include "base/check.h"

namespace lapidary {

void EvictionOrder::Set(int32_t page, int64_t key) {
  keys_[page] = key;
  if (!contains(page)) {
    heap_.push_back(page);
    place_[page] = size() - 1;
  }
  Settle(place_[page]);
}

void EvictionOrder::Remove(int32_t page) {
  CHECK(contains(page)) << page;
  const int place = place_[page];
  const int32_t last = heap_.back();
  heap_.pop_back();
  place_[page] = -1;
  if (last == page) return;
  Put(last, place);
  Settle(place);
}

void EvictionOrder::Settle(int place) {
  const int32_t page = heap_[place];
  const int64_t key = keys_[page];
  while (place > 0) {
    const int parent = (place - 1) / 2;
    if (keys_[heap_[parent]] <= key) break;
    Put(heap_[parent], place);
    place = parent;
  }
  while (true) {
    int child = 2 * place + 1;
    if (child >= size()) break;
    if (child + 1 < size() && keys_[heap_[child + 1]] < keys_[heap_[child]]) ++child;
    if (keys_[heap_[child]] >= key) break;
    Put(heap_[child], place);
    place = child;
  }
  Put(page, place);
}

}  // namespace lapidary
