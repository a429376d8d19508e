// A stretch of prompt text with its origin, as the chat template renders it.
#pragma once

#include <string>

namespace lapidary {

struct TextSegment {
  std::string text;
  // Trusted text (the template's own) may name special tokens such as <|turn>. Untrusted text (a
  // user's message, a tool's result) is always plain text, whatever strings it holds.
  bool trusted = false;
};

}  // namespace lapidary
