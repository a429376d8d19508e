// Exceptions that nobody expects, at the ends of threads and handlers.
#pragma once

#include <exception>

#include "server/api_error.h"

namespace lapidary {

// "WHAT: the error's message" in the log; lacks of memory, which come in crowds, once in a
// while. Never throws.
void LogFailure(const char* what, const std::exception& error) noexcept;

// The same, and what the client is told: 503 where memory was lacking, else 500. Throws
// std::bad_alloc where there is not even memory for that.
ApiError ApiErrorOf(const char* what, const std::exception& error);

}  // namespace lapidary
