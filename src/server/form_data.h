// The body of a multipart/form-data request, as browsers and clients of OpenAI upload files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace lapidary {

struct FormField {
  std::string name;
  std::string_view value;  // of the body
};

inline constexpr size_t kMaxFormFields = 64;

// The boundary is the body's first line, so the header that repeats it is not needed.
ApiStatus ParseFormData(std::string_view body, std::vector<FormField>* fields);

}  // namespace lapidary
