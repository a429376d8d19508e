// WAV, FLAC, Ogg and MP3 files from outside, as the mono samples that towers hear.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary {

inline constexpr int kAudioSampleRate = 16000;

struct AudioLimits {
  int64_t max_bytes = int64_t{64} << 20;  // of the file
  int max_seconds = 600;
};

// Samples in [-1, 1] at kAudioSampleRate: channels averaged, other rates resampled. Memory grows
// with what was decoded, never with what a header promises.
Result<std::vector<float>> DecodeAudio(std::string_view file, const AudioLimits& limits = {});

}  // namespace lapidary
