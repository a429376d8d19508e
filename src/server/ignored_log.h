// Lines on what of requests changes nothing here.
#pragma once

#include <string>

namespace lapidary {

// From any thread. One client that always sends such requests does not fill the log: of many lines
// in a short time most are only counted.
void LogIgnored(const std::string& line);

}  // namespace lapidary
