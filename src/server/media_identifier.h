// What an image or a sound is called where routers compare prompts.
#pragma once

#include <fmt/format.h>

#include <string>

#include "kv/prefix_hashes.h"

namespace lapidary {

// The 128 bits of its digest as 64 hexadecimal digits, the length that Dynamo knows media by.
inline std::string MediaIdentifier(const MediaDigest& digest) {
  return fmt::format("{:016x}{:016x}{:032x}", digest.high, digest.low, 0);
}

}  // namespace lapidary
