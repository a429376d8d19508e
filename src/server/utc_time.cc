#include "server/utc_time.h"

#include <fmt/format.h>

#include <ctime>

namespace lapidary {

std::string UtcTime(std::chrono::system_clock::time_point time) {
  using std::chrono::duration_cast;
  const auto since_1970 = duration_cast<std::chrono::microseconds>(time.time_since_epoch());
  const std::time_t seconds = duration_cast<std::chrono::seconds>(since_1970).count();
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     since_1970.count() % 1'000'000);
}

}  // namespace lapidary
