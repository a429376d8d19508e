// Files of the server's own machine that requests may name.
#pragma once

#include <filesystem>
#include <string>

#include "server/api_error.h"
#include "server/media_parts.h"

namespace lapidary {

// Reads the file that the part names, if it lies under `directory` once all links are followed. An
// empty directory: there are no such files. Which of the reasons it is not read for is not told,
// for that would tell what lies elsewhere.
ApiStatus ReadLocalMedia(const std::filesystem::path& directory, const MediaPart& part,
                         std::string* file);

}  // namespace lapidary
