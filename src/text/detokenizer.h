// Token ids to text, one id at a time, for streaming.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "text/tokenizer.h"

namespace lapidary {

// What Push() and Finish() append, joined, is Tokenizer::Decode of the same ids, which is built on
// this class. The text handed out always ends at a character border: up to three bytes of an
// unfinished character are held back.
//
// Consecutive byte tokens are read as UTF-8 from left to right; a byte that cannot be part of a
// character becomes U+FFFD by itself. The `tokenizers` package looks at the whole run of byte
// tokens instead and, when any of it is malformed, turns every byte of the run into U+FFFD, the
// good characters too. That cannot be streamed, since the last byte decides about the first. The
// two differ exactly in runs that mix well-formed characters with malformed bytes.
//
// Skipped special tokens and holes of the vocabulary have no text and do not end a run of bytes.
class Detokenizer {
 public:
  // `tokenizer` must outlive this.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // Appends the text that `id` completes to `*text`. Fails, changing nothing, for an id outside
  // [0, vocab_size()).
  Status Push(int32_t id, std::string* text);

  // Ends the text: held-back bytes become U+FFFD each. The next Push() begins a new text.
  void Finish(std::string* text);

 private:
  void PushByte(uint8_t byte, std::string* text);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // a proper prefix of a well-formed character, at most 3 bytes
};

}  // namespace lapidary
