// Times as logs and answers write them.
#pragma once

#include <chrono>
#include <string>

namespace lapidary {

// "2026-08-15T09:30:00.123456Z", as RFC 3339 has it.
std::string UtcTime(std::chrono::system_clock::time_point time);

}  // namespace lapidary
