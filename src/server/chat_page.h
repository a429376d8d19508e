// The chat page at / (resources/chat_page, compiled in as one file), and the frame at /preview that
// shows the HTML a model wrote.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/http_types.h"

namespace lapidary {

// Whether a Content-Security-Policy can name these addresses (--mcp-servers), and if not, why.
Status CheckMcpServers(const std::vector<std::string>& urls);

class ChatPage {
 public:
  // The page may call the MCP servers at `mcp_servers`, which CheckMcpServers accepts, and this
  // server; nothing else. It reads their addresses in its own policy.
  explicit ChatPage(const std::vector<std::string>& mcp_servers);

  // The page, or a 304 when the browser has it: `if_none_match` is what it says it has.
  HttpResponse Respond(std::string_view if_none_match) const;

 private:
  std::string policy_;
  std::string etag_;
};

// A page in an opaque origin, which can load nothing. It shows the HTML of the first message that
// the page around it sends.
HttpResponse PreviewResponse();

}  // namespace lapidary
