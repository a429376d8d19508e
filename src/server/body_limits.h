// How many bytes a JSON body may have: those of its text, and those of its images and sounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/api_error.h"

namespace lapidary {

struct BodyLimits {
  size_t max_text_bytes = SIZE_MAX;
  size_t max_media_bytes = SIZE_MAX;  // as they are sent; 0: they count as text
};

// Bytes of the media in a JSON text: values that begin with "data:" or stand under the key "data".
size_t CountMediaBytes(std::string_view json);

ApiStatus CheckBodySize(std::string_view json, const BodyLimits& limits);

}  // namespace lapidary
