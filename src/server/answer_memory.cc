#include "server/answer_memory.h"

#include <algorithm>

namespace lapidary {

void AnswerMemory::GiveUpOldest(size_t max_bytes) {
  while (stats_.num_bytes > max_bytes && !unread_.empty()) {
    const Unread oldest = std::move(unread_.begin()->second);
    unread_.erase(unread_.begin());
    stats_.num_bytes -= oldest.num_bytes;
    stats_.unread_bytes -= oldest.num_bytes;
    ++stats_.num_given_up;
    oldest.give_up();
  }
}

bool AnswerMemory::Resize(size_t from, size_t to) {
  const std::lock_guard lock(mutex_);
  if (to > from) {
    const size_t max_taken = to <= kSmallBytes ? max_bytes_ : MaxOfOne();
    // In vain: nobody is given up for it.
    if (to > max_taken || stats_.num_bytes - stats_.unread_bytes - from > max_taken - to) {
      ++stats_.num_refused;
      return false;
    }
    GiveUpOldest(max_taken - (to - from));
  }
  stats_.num_bytes += to - from;
  return true;
}

AnswerMemory::Key AnswerMemory::AddUnread(std::function<void()> give_up) {
  const std::lock_guard lock(mutex_);
  unread_.emplace(next_key_, Unread{std::move(give_up), 0});
  return next_key_++;
}

void AnswerMemory::ResizeUnread(Key key, size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = unread_.find(key);
  if (found == unread_.end()) return;  // It has been given up.
  const size_t before = std::exchange(found->second.num_bytes, num_bytes);
  stats_.num_bytes += num_bytes - before;
  stats_.unread_bytes += num_bytes - before;
  if (num_bytes > before) GiveUpOldest(max_bytes_);
}

void AnswerMemory::RemoveUnread(Key key) {
  ResizeUnread(key, 0);
  const std::lock_guard lock(mutex_);
  unread_.erase(key);
}

void AnswerMemory::CountTimeout() {
  const std::lock_guard lock(mutex_);
  ++stats_.num_timed_out;
}

AnswerMemory::Stats AnswerMemory::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.num_unread = unread_.size();
  return stats;
}

bool AnswerLease::Resize(size_t num_bytes) {
  if (!memory_->Resize(num_bytes_, num_bytes)) return false;
  num_bytes_ = num_bytes;
  return true;
}

ApiError AnswerLease::Refusal(size_t num_bytes) const {
  if (num_bytes <= memory_->MaxOfOne()) {
    ApiError error{503, "the answers being made hold too much memory; try again later"};
    error.code = "out_of_memory";
    error.retry_after_seconds = 1;
    return error;
  }
  ApiError error{400, fmt::format("the answer takes more than the {} bytes of memory that one may "
                                  "have (--max-answer-memory of the server): ask for fewer "
                                  "choices, tokens or log-probabilities",
                                  memory_->MaxOfOne())};
  error.code = "answer_too_large";
  return error;
}

void AnswerText::Append(std::string_view text) {
  if (!ok()) return;
  const size_t size = text_.size() + text.size();
  if (size > text_.capacity()) {
    // Doubles, so that bytes move but a few times; while they do, they are there twice.
    const size_t capacity = std::max(size, 2 * text_.capacity());
    const size_t wanted = others_ + text_.capacity() + capacity;
    if (lease_ != nullptr && !lease_->Resize(wanted)) {
      num_refused_ = wanted;
      return;
    }
    std::string larger;
    larger.reserve(capacity);
    larger += text_;
    text_ = std::move(larger);
    if (lease_ != nullptr) static_cast<void>(lease_->Resize(others_ + capacity));
  }
  text_ += text;
}

}  // namespace lapidary
