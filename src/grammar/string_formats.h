// The `format`s of JSON Schema whose strings a regular expression can tell.
#pragma once

#include <optional>
#include <string_view>

namespace lapidary::grammar {

// A regular expression (regex_syntax.h) for the whole string; none for a format that constrains
// nothing here, as JSON Schema has it for unknown ones.
std::optional<std::string_view> FormatPattern(std::string_view format);

// Formats that JSON Schema defines and that no regular expression here can tell.
bool IsUnsupportedFormat(std::string_view format);

}  // namespace lapidary::grammar
