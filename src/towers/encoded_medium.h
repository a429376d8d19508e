// An encoded image or audio file: the rows that replace its placeholder tokens.
#pragma once

#include <memory>
#include <vector>

#include "towers/content_digest.h"

namespace lapidary {

enum class MediaKind { kImage, kAudio };
const char* MediaKindName(MediaKind kind);

struct EncodedMedium {
  MediaKind kind = MediaKind::kImage;
  int num_tokens = 0;
  // Of an image as the tower saw it.
  int height = 0;
  int width = 0;
  double seconds = 0.0;                            // of a sound, as far as it is heard
  std::shared_ptr<const std::vector<float>> rows;  // [num_tokens, text hidden]
  ContentDigest digest;                            // over what the tower saw or heard
};

}  // namespace lapidary
