// Base64 as requests carry files in it.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace lapidary {

// The standard alphabet or that of URLs; padding may be left out; line breaks and blanks between
// digits are skipped.
Result<std::string> DecodeBase64(std::string_view text);

// The standard alphabet, with padding.
std::string EncodeBase64(std::string_view bytes);

}  // namespace lapidary
