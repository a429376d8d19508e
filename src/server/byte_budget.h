// Memory that requests may hold between them while they are read and parsed. Whoever finds no more
// is told to come back later, or that all of it would not do; the server goes on.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "server/api_error.h"

namespace lapidary {

class ByteBudget {
 public:
  explicit ByteBudget(size_t max_bytes) : max_bytes_(max_bytes) {}

  // A request that holds little may take all there is; the others leave an eighth, so that large
  // ones never shut out small ones.
  static constexpr size_t kSmallRequestBytes = size_t{256} << 10;
  size_t MaxTaken(size_t num_bytes, size_t num_held) const {
    const bool is_small =
        num_held <= kSmallRequestBytes && num_bytes <= kSmallRequestBytes - num_held;
    return is_small ? max_bytes_ : max_bytes_ - max_bytes_ / 8;
  }

  // Whether a request that holds `num_held` bytes would get so many more now.
  bool HasRoom(size_t num_bytes, size_t num_held) const {
    return Fits(num_bytes, num_held, taken_.load());
  }
  // Whether it would if it were the only one.
  bool HasRoomAlone(size_t num_bytes, size_t num_held) const {
    return Fits(num_bytes, num_held, /*taken=*/num_held);
  }
  bool TryTake(size_t num_bytes, size_t num_held) {
    size_t taken = taken_.load();
    do {
      if (!Fits(num_bytes, num_held, taken)) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + num_bytes));
    return true;
  }
  void Give(size_t num_bytes) { taken_.fetch_sub(num_bytes); }
  size_t taken() const { return taken_.load(); }

 private:
  bool Fits(size_t num_bytes, size_t num_held, size_t taken) const {
    const size_t max_taken = MaxTaken(num_bytes, num_held);
    return taken <= max_taken && num_bytes <= max_taken - taken;
  }

  const size_t max_bytes_;
  std::atomic<size_t> taken_{0};
};

// One request's part of it, given back when it goes.
class ByteLease {
 public:
  explicit ByteLease(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}
  ~ByteLease() { budget_->Give(num_bytes_); }
  ByteLease(const ByteLease&) = delete;
  ByteLease& operator=(const ByteLease&) = delete;

  bool Grow(size_t num_bytes) {
    if (!budget_->TryTake(num_bytes, num_bytes_)) return false;
    num_bytes_ += num_bytes;
    return true;
  }
  // Gives back what turned out not to be needed.
  void ShrinkTo(size_t num_bytes) {
    if (num_bytes >= num_bytes_) return;
    budget_->Give(num_bytes_ - num_bytes);
    num_bytes_ = num_bytes;
  }

  // To what turned out to be needed. False: there is no more to be had.
  bool Resize(size_t num_bytes) {
    if (num_bytes > num_bytes_) return Grow(num_bytes - num_bytes_);
    ShrinkTo(num_bytes);
    return true;
  }
  size_t num_bytes() const { return num_bytes_; }

  // Why so many more bytes are not to be had: 503 if they may be later, 413 if they never will.
  ApiError Refusal(size_t num_bytes) const;

 private:
  const std::shared_ptr<ByteBudget> budget_;
  size_t num_bytes_ = 0;
};

}  // namespace lapidary
