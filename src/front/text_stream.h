// The text of one request as its tokens arrive: detokenized, and cut at the first stop string.
//
//   TextStream text(tokenizer, /*skip_special=*/true, std::move(stop_strings));
//   for each id: send(text.Push(id)); if (text.matched()) break;
//   send(text.Finish());
//
// The pieces joined are the text, whatever the ids' borders: each piece ends at a character, and no
// part of a stop string is ever handed out.
#pragma once

#include <cstdint>
#include <string>

#include "sampling/stop_strings.h"
#include "text/detokenizer.h"

namespace lapidary {

class TextStream {
 public:
  // `tokenizer` must outlive this.
  TextStream(const Tokenizer& tokenizer, bool skip_special, StopStrings stop_strings = {})
      : detokenizer_(tokenizer, skip_special), stop_strings_(std::move(stop_strings)) {}

  // The text that can be shown now, often empty. An id the tokenizer does not know (a row that only
  // pads the embedding) has no text.
  std::string Push(int32_t id);

  // There are no more ids: what was held back.
  std::string Finish();

  // A stop string was found; everything from there on is dropped.
  bool matched() const { return stop_strings_.matched(); }
  // Which one, as StopStrings::match_index().
  int match_index() const { return stop_strings_.match_index(); }

 private:
  Detokenizer detokenizer_;
  StopStrings stop_strings_;
};

}  // namespace lapidary
