// The audio encoder's front end: frames of 20 ms every 10 ms, as logarithms of 128 mel bands.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lapidary {

inline constexpr int kNumMelBands = 128;
inline constexpr int64_t kMaxMelSamples = 480000;  // 30 s at 16 kHz; the rest is not heard

// Frames of that many samples: whole ones of 321 every 160, behind 160 zeros.
int NumMelFrames(int64_t num_samples);

// Samples at 16 kHz -> [NumMelFrames, kNumMelBands].
std::vector<float> LogMel(std::span<const float> samples);

}  // namespace lapidary
