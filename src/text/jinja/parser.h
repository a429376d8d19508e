#pragma once

#include <string_view>

#include "base/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/budget.h"

namespace lapidary::jinja {

// Parses a template. Errors name the construct and the line; whatever the evaluator does not
// support is refused here.
Result<Tree> Parse(std::string_view source, const Limits& limits);

}  // namespace lapidary::jinja
