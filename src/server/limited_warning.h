// A warning that may come often: said at once, then once in a while, with how often it came.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lapidary {

class LimitedWarning {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kInterval{10};

  // What to log, if anything: the message, and how many were left out since the last one.
  std::optional<std::string> Next(std::string_view message, Clock::time_point now);

 private:
  std::optional<Clock::time_point> said_;
  int64_t num_left_out_ = 0;
};

}  // namespace lapidary
