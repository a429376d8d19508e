// A video in a prompt: its frames, as images that each follow their timestamp.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/text_segment.h"

namespace lapidary {

inline constexpr int kMaxVideoFrames = 32;
// Tokens that a frame may become.
inline constexpr int kVideoFrameSoftTokens = 70;

// Which frames are shown: all of up to kMaxVideoFrames, of more so many that are evenly spread.
std::vector<int> ChooseVideoFrames(int num_frames);

// "00:00 <|image|> 00:01 <|image|>": minutes and whole seconds of every frame.
std::string VideoText(std::span<const double> frame_seconds);

// Puts the next of `texts` in place of every <|video|> that the template wrote. It happens before
// the text is cut into tokens: a time may share one with what stands before it.
Status ReplaceVideoPlaceholders(std::span<const std::string> texts,
                                std::vector<TextSegment>* segments);

}  // namespace lapidary
