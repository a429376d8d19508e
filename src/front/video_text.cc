#include "front/video_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace lapidary {

std::vector<int> ChooseVideoFrames(int num_frames) {
  std::vector<int> chosen(std::min(num_frames, kMaxVideoFrames));
  for (size_t i = 0; i < chosen.size(); ++i) {
    chosen[i] = static_cast<int>(static_cast<int64_t>(i) * num_frames / std::ssize(chosen));
  }
  return chosen;
}

std::string VideoText(std::span<const double> frame_seconds) {
  std::string text;
  for (const double seconds : frame_seconds) {
    const auto whole = static_cast<int64_t>(seconds);
    text += fmt::format("{}{:02}:{:02} <|image|>", text.empty() ? "" : " ", whole / 60, whole % 60);
  }
  return text;
}

Status ReplaceVideoPlaceholders(std::span<const std::string> texts,
                                std::vector<TextSegment>* segments) {
  constexpr std::string_view kPlaceholder = "<|video|>";
  size_t num_found = 0;
  for (TextSegment& segment : *segments) {
    if (!segment.trusted) continue;
    size_t at = 0;
    while ((at = segment.text.find(kPlaceholder, at)) != std::string::npos) {
      if (num_found < texts.size()) {
        segment.text.replace(at, kPlaceholder.size(), texts[num_found]);
        at += texts[num_found].size();
      } else {
        at += kPlaceholder.size();
      }
      ++num_found;
    }
  }
  if (num_found == texts.size()) return {};
  return MakeError("the chat template wrote {} of {} for {} videos", num_found, kPlaceholder,
                   texts.size());
}

}  // namespace lapidary
