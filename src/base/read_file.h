// The one reader of small files: every file from outside is read whole and within a bound.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace lapidary {

// Bounds for files of a kind; the real ones are a hundredth of it.
inline constexpr size_t kMaxConfigFileBytes = size_t{16} << 20;  // settings, templates, keys
inline constexpr size_t kMaxDataFileBytes = size_t{256} << 20;   // questions, conversations

// The bytes of a regular file. An error when it is missing, something else (a directory, a pipe),
// unreadable, or longer than `max_bytes`: memory is taken after that is known.
Result<std::string> ReadFile(const std::filesystem::path& path, size_t max_bytes);

}  // namespace lapidary
