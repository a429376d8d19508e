// The library's log: stderr, warnings and worse unless SetLogLevel asks for more.
#pragma once

namespace lapidary {

// Sends the log there the first time; stdout is the program's.
void PrepareLog();

}  // namespace lapidary
