#include "server/response_store.h"

namespace lapidary {

void ResponseStore::DropOldest() {
  num_bytes_ -= by_use_.back().messages.size();
  by_id_.erase(by_use_.back().id);
  by_use_.pop_back();
}

void ResponseStore::Put(const std::string& id, std::string messages) {
  if (messages.size() > max_bytes_) return;
  const std::lock_guard lock(mutex_);
  num_bytes_ += messages.size();
  by_use_.push_front({id, std::move(messages)});
  by_id_[id] = by_use_.begin();
  while (by_use_.size() > max_responses_ || num_bytes_ > max_bytes_) DropOldest();
}

size_t ResponseStore::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

std::optional<std::string> ResponseStore::Get(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return std::nullopt;
  by_use_.splice(by_use_.begin(), by_use_, it->second);
  return it->second->messages;
}

}  // namespace lapidary
