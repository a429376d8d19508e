// A request that ends when nobody holds it any more.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "engine/engine.h"

namespace lapidary {

// The way from a handle to its engine, which may be gone before the handle is.
class EngineLink {
 public:
  explicit EngineLink(Engine* engine) : engine_(engine) {}
  void Cancel(RequestId id) {
    const std::lock_guard lock(mutex_);
    if (engine_ != nullptr) engine_->Cancel(id);
  }
  // The engine is about to go.
  void Cut() {
    const std::lock_guard lock(mutex_);
    engine_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Engine* engine_;
};

class RequestHandle {
 public:
  RequestHandle() = default;
  RequestHandle(std::shared_ptr<EngineLink> link, RequestId id) : link_(std::move(link)), id_(id) {}
  RequestHandle(RequestHandle&& other) noexcept
      : link_(std::move(other.link_)), id_(std::exchange(other.id_, 0)) {}
  RequestHandle& operator=(RequestHandle&& other) noexcept {
    std::swap(link_, other.link_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~RequestHandle() { Cancel(); }

  RequestId id() const { return id_; }  // as its events say

  // Ends the request soon: the last event still comes, with kCancelled unless it ended before. From
  // any thread.
  void Cancel() const {
    if (link_ != nullptr) link_->Cancel(id_);
  }
  // It has ended, or may go on without the handle.
  void Release() { link_.reset(); }

 private:
  std::shared_ptr<EngineLink> link_;  // null: nothing to cancel
  RequestId id_ = 0;
};

}  // namespace lapidary
