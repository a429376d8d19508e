// Responses that can be read again and gone on from, by their ids. Bounded: the ones used longest
// ago are forgotten.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace lapidary {

// Each as JSON text: a tree takes many times the memory.
struct StoredResponse {
  std::string messages;     // a list: the conversation with its answer, without the instructions
  std::string input_items;  // a list: what the request itself said
  std::string response;     // as it was answered

  size_t num_bytes() const { return messages.size() + input_items.size() + response.size(); }
};

class ResponseStore {
 public:
  ResponseStore(size_t max_responses, size_t max_bytes)
      : max_responses_(max_responses), max_bytes_(max_bytes) {}

  void Put(const std::string& id, StoredResponse response);
  // Null if it is not there.
  std::shared_ptr<const StoredResponse> Get(const std::string& id);
  // False if it was not there.
  bool Remove(const std::string& id);
  size_t num_bytes() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
  };
  using Entries = std::list<Entry>;
  void Drop(Entries::iterator entry);

  const size_t max_responses_;
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  size_t num_bytes_ = 0;
  Entries by_use_;  // latest first
  std::unordered_map<std::string, Entries::iterator> by_id_;
};

}  // namespace lapidary
