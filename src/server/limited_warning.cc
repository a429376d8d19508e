#include "server/limited_warning.h"

#include <fmt/format.h>

#include <utility>

namespace lapidary {

std::optional<std::string> LimitedWarning::Next(std::string_view message, Clock::time_point now) {
  if (said_ && now - *said_ < kInterval) {
    ++num_left_out_;
    return std::nullopt;
  }
  said_ = now;
  const int64_t num_left_out = std::exchange(num_left_out_, 0);
  if (num_left_out == 0) return std::string(message);
  return fmt::format("{} ({} more since the last such line)", message, num_left_out);
}

}  // namespace lapidary
