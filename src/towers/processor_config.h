// The settings for images in a checkpoint's processor_config.json.
#pragma once

#include <filesystem>

#include "base/result.h"

namespace lapidary {

// Soft tokens that an image may become where nobody says how many: image_processor's
// max_soft_tokens, kDefaultSoftTokens without such a file or field.
Result<int> ReadDefaultSoftTokens(const std::filesystem::path& directory);

}  // namespace lapidary
