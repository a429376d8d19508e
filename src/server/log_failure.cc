#include "server/log_failure.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <mutex>
#include <new>

#include "base/memory_reserve.h"
#include "server/limited_warning.h"

namespace lapidary {
namespace {

void LogLackOfMemory() {
  static std::mutex mutex;
  static LimitedWarning warning;
  const std::lock_guard lock(mutex);
  const auto line = warning.Next("there was no memory for a request", LimitedWarning::Clock::now());
  if (line) spdlog::warn("{}", *line);
}

}  // namespace

void LogFailure(const char* what, const std::exception& error) noexcept {
  const ReserveScope reserve;
  try {
    if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return LogLackOfMemory();
    spdlog::error("{}: {}", what, error.what());
  } catch (const std::exception&) {  // Then nobody is told.
  }
}

ApiError ApiErrorOf(const char* what, const std::exception& error) {
  LogFailure(what, error);
  const ReserveScope reserve;
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? OutOfMemory() : InternalError();
}

}  // namespace lapidary
