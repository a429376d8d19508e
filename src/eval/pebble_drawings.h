// The pictures and sounds that the Pebble models are asked about, drawn anew from a few numbers:
// what tools/pebble/pictures.py and sounds.py make of them, to the last bit.
#pragma once

#include <span>
#include <vector>

#include "media/image.h"

namespace lapidary {

inline constexpr int kPebbleSide = 8;         // cells of a picture, each way
inline constexpr int kPebbleCellPixels = 48;  // of a cell, each way
inline constexpr int kNumPebbleMasks = 97;    // nothing, and 16 figures in 6 sizes and places
inline constexpr int kNumPebbleColors = 6;
inline constexpr int kNumPebbleTones = 161;  // 0: silence
inline constexpr int kPebblePieceSamples = 640;

struct PebbleCell {
  int row = 0;
  int column = 0;
  int mask = 0;
  int color = 0;
};

Image DrawPebblePicture(std::span<const PebbleCell> cells);

// One tone a piece; loudness in percent. Samples at 16 kHz.
std::vector<float> PlayPebbleSound(std::span<const int> tones, int loudness);

}  // namespace lapidary
