// The types that weights can be rounded to while they are loaded, by the names that users give
// them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace lapidary {

// "q8_0", "q4_0", "q4_k", "int8" (which is q8_0) and "fp8".
const std::vector<std::string>& QuantisationNames();
std::optional<DType> QuantisationByName(const std::string& name);

}  // namespace lapidary
