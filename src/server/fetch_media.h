// Images and sounds that a request names by an http(s) URL.
#pragma once

#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/media_parts.h"

namespace lapidary {

// Fetches part.url from one of the allowed hosts (media_hosts.h). Every redirect is checked as the
// first URL was, every connection goes to the very address that was checked, and size and time have
// limits. Proxies of the environment, cookies and credentials are not used. Blocks: not for an
// event loop.
ApiStatus FetchMedia(const std::vector<std::string>& allowed_hosts, const MediaPart& part,
                     std::string* file);

}  // namespace lapidary
