// The chat page at /: resources/chat_page/index.html, compiled in.
#pragma once

#include <string_view>

#include "server/http_types.h"

namespace lapidary {

// The page, or a 304 when the browser has it: `if_none_match` is what it says it has. The headers
// let the page run its own script and talk to this server, and nothing else.
HttpResponse ChatPageResponse(std::string_view if_none_match);

}  // namespace lapidary
