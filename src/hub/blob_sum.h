// The checksums by which the Hub names files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lapidary::hub {

// Of a file's first `num_bytes` bytes: what a blob of that name must have, in hexadecimal. For
// names of 64 digits their sha256, for those of 40 the SHA-1 that git has (of "blob LENGTH\0" and
// the bytes). `on_read` is told of every so many bytes, and ends it by returning false (an error).
Result<std::string> SumOfFile(const std::filesystem::path& path, int64_t num_bytes,
                              std::string_view blob_name,
                              const std::function<bool(int64_t num_read)>& on_read);

}  // namespace lapidary::hub
