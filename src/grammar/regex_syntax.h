// Regular expressions as users write them: ECMA-262 (what JSON Schema's `pattern` means), without
// back references, look-behind and word boundaries. Look-ahead works outside repetitions.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/code_points.h"
#include "grammar/regex_pool.h"

namespace lapidary::grammar {

enum class RegexScope {
  kWhole,  // the expression is the whole text
  // The expression occurs somewhere, as in JSON Schema; ^ and $ pin it down. What follows a match
  // may be any bytes, so that a match ends the search: intersect with the texts there are.
  kSearch,
};

// The language of `pattern`, in which characters are written as `encoding` says. Errors are one
// sentence that names the construct.
Result<RegexId> ParseRegex(RegexPool* pool, std::string_view pattern, RegexScope scope,
                           TextEncoding encoding);

// Any one character as it stands in the encoding.
RegexId AnyCharacter(RegexPool* pool, TextEncoding encoding);

}  // namespace lapidary::grammar
