// Comma-separated values as RFC 4180 and Python's csv module have them: a field in double quotes
// may hold commas, line ends and doubled quotes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary {

using CsvRow = std::vector<std::string>;

// The rows of `text`; empty lines are left out, as is a byte order mark. Lines end with LF, CRLF or
// CR. `name` stands for the file in messages. An error when a quoted field is not closed or goes on
// after its closing quote.
Result<std::vector<CsvRow>> ParseCsv(std::string_view text, std::string_view name);

}  // namespace lapidary
