// Memory of answers, of all clients together: what is kept of those being made (texts,
// log-probabilities), and the bytes that clients have not taken yet.
//
// When there is no room, the answers that have waited longest for their clients to read them are
// given up, the oldest first; only when that does not help is a new answer refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"

namespace lapidary {

// Every method may be called from many threads at once.
class AnswerMemory {
 public:
  struct Stats {
    size_t num_bytes = 0;
    size_t unread_bytes = 0;     // of them, of answers whose clients are slower than we are
    size_t num_unread = 0;       // such answers
    uint64_t num_given_up = 0;   // because others needed their memory
    uint64_t num_timed_out = 0;  // because they took too little for too long
    uint64_t num_refused = 0;    // answers that got none
  };
  using Key = uint64_t;

  explicit AnswerMemory(size_t max_bytes) : max_bytes_(max_bytes) {}

  // An answer being made takes `to` bytes instead of `from`. False: there is no room; less always
  // is. Small answers may take all there is, the others leave an eighth.
  bool Resize(size_t from, size_t to);
  size_t MaxOfOne() const { return max_bytes_ - max_bytes_ / 8; }

  // A client has begun to wait for an answer's bytes; they are there already and always counted.
  // `give_up` closes it, from any thread, once; it must neither block nor call this.
  Key AddUnread(std::function<void()> give_up);
  void ResizeUnread(Key key, size_t num_bytes);
  void RemoveUnread(Key key);
  // A client was given up because of its own slowness.
  void CountTimeout();

  Stats stats() const;

 private:
  static constexpr size_t kSmallBytes = size_t{256} << 10;
  struct Unread {
    std::function<void()> give_up;
    size_t num_bytes = 0;
  };
  // Takes the oldest out until what is taken is at most `max_bytes`. With the mutex held.
  void GiveUpOldest(size_t max_bytes);

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::map<Key, Unread> unread_;  // guarded by mutex_, as is the rest; the oldest first
  Key next_key_ = 0;
  Stats stats_;
};

// What an answer being made keeps, given back when it goes. From one thread at a time.
class AnswerLease {
 public:
  explicit AnswerLease(std::shared_ptr<AnswerMemory> memory) : memory_(std::move(memory)) {}
  ~AnswerLease() { static_cast<void>(Resize(0)); }
  AnswerLease(const AnswerLease&) = delete;
  AnswerLease& operator=(const AnswerLease&) = delete;

  size_t num_bytes() const { return num_bytes_; }
  bool Resize(size_t num_bytes);
  // Why so many bytes are not to be had: 503 if they may be later, 400 if they never will.
  ApiError Refusal(size_t num_bytes) const;

 private:
  const std::shared_ptr<AnswerMemory> memory_;
  size_t num_bytes_ = 0;
};

// A whole answer's text as it is written, on top of what its lease holds. Without room nothing more
// is written, and ok() is false.
class AnswerText {
 public:
  // `lease` may be null: unlimited.
  explicit AnswerText(AnswerLease* lease)
      : lease_(lease), others_(lease == nullptr ? 0 : lease->num_bytes()) {}

  void Append(std::string_view text);
  bool ok() const { return num_refused_ == 0; }
  ApiError Refusal() const { return lease_->Refusal(num_refused_); }
  std::string Take() { return std::move(text_); }

 private:
  AnswerLease* const lease_;
  const size_t others_;  // what the lease holds beside the text
  std::string text_;
  size_t num_refused_ = 0;  // bytes that the lease was asked for in vain
};

}  // namespace lapidary
