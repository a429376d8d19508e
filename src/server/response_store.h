// Conversations that a later /v1/responses may go on from, by the id of their last response.
// Bounded: the ones used longest ago are forgotten.
#pragma once

#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace lapidary {

class ResponseStore {
 public:
  ResponseStore(size_t max_responses, size_t max_bytes)
      : max_responses_(max_responses), max_bytes_(max_bytes) {}

  // `messages`: a list as JSON text (a tree takes many times the memory), the conversation with its
  // answer, without the instructions.
  void Put(const std::string& id, std::string messages);
  std::optional<std::string> Get(const std::string& id);
  size_t num_bytes() const;

 private:
  struct Entry {
    std::string id;
    std::string messages;
  };
  void DropOldest();

  const size_t max_responses_;
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  size_t num_bytes_ = 0;
  std::list<Entry> by_use_;  // latest first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
};

}  // namespace lapidary
