#include "front/text_stream.h"

namespace lapidary {

std::string TextStream::Push(int32_t id) {
  std::string text;
  if (const Status known = detokenizer_.Push(id, &text); !known.ok()) return {};
  return stop_strings_.Push(text);
}

std::string TextStream::Finish() {
  std::string text;
  detokenizer_.Finish(&text);
  std::string piece = stop_strings_.Push(text);
  return piece + stop_strings_.Finish();
}

}  // namespace lapidary
