#include "server/ignored_log.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <mutex>

namespace lapidary {

void LogIgnored(const std::string& line) {
  constexpr std::chrono::seconds kInterval{10};
  constexpr int kMaxLines = 10;
  static std::mutex mutex;
  static std::chrono::steady_clock::time_point interval_end{};
  static int num_lines = 0;
  const std::lock_guard lock(mutex);
  const auto now = std::chrono::steady_clock::now();
  if (now >= interval_end) {
    if (num_lines > kMaxLines) {
      spdlog::info("{} more requests had parts that are not known here", num_lines - kMaxLines);
    }
    interval_end = now + kInterval;
    num_lines = 0;
  }
  if (++num_lines <= kMaxLines) spdlog::info("{}", line);
}

}  // namespace lapidary
