#include "server/response_store.h"

#include <iterator>
#include <utility>

namespace lapidary {

void ResponseStore::Drop(Entries::iterator entry) {
  num_bytes_ -= entry->response->num_bytes();
  by_id_.erase(entry->id);
  by_use_.erase(entry);
}

void ResponseStore::Put(const std::string& id, StoredResponse response) {
  const size_t num_bytes = response.num_bytes();
  if (num_bytes > max_bytes_) return;
  const std::lock_guard lock(mutex_);
  std::list<Entry> stored;  // All that takes memory first.
  stored.push_front({id, std::make_shared<const StoredResponse>(std::move(response))});
  by_id_[id] = stored.begin();
  by_use_.splice(by_use_.begin(), stored);
  num_bytes_ += num_bytes;
  while (by_use_.size() > max_responses_ || num_bytes_ > max_bytes_) {
    Drop(std::prev(by_use_.end()));
  }
}

size_t ResponseStore::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

std::shared_ptr<const StoredResponse> ResponseStore::Get(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return nullptr;
  by_use_.splice(by_use_.begin(), by_use_, it->second);
  return it->second->response;
}

bool ResponseStore::Remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return false;
  Drop(it->second);
  return true;
}

}  // namespace lapidary
