// What one request says, as its tokens arrive: detokenized, split into thoughts, content and tool
// calls, and cut at the first stop string.
//
//   AnswerStream answer(tokenizer, {.stop_strings = ..., .parser = ...});
//   for each id: answer.Push(id, &events); if (answer.matched()) break;
//   answer.Finish(&events);
//
// The events joined are the answer, whatever the ids' borders: each text ends at a character, and
// no part of a stop string is ever handed out. Stop strings are looked for in the content alone: a
// model that thinks about a stop string has not come to its answer yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/stop_strings.h"

namespace lapidary {

struct AnswerStreamOptions {
  bool skip_special = true;  // special tokens have no text
  StopStrings stop_strings = {};
  int32_t min_tokens = 0;  // a stop string that is complete before so many does not count
  std::optional<OutputParserOptions> parser = {};  // without: all text is content
};

class AnswerStream {
 public:
  // `tokenizer` must outlive this.
  AnswerStream(const Tokenizer& tokenizer, AnswerStreamOptions options);

  // Appends what is known now, often nothing. An id the tokenizer does not know (a row that only
  // pads the embedding) has no text.
  void Push(int32_t id, std::vector<OutputEvent>* events);
  // There are no more ids: what was held back.
  void Finish(std::vector<OutputEvent>* events);

  // A stop string was found; everything from there on is dropped.
  bool matched() const { return stop_strings_.matched(); }
  // Which one, as StopStrings::match_index().
  int match_index() const { return stop_strings_.match_index(); }

  // What comes next is part of a thought.
  bool in_thought() const { return parser_ && parser_->in_thought(); }

  // Characters of all text so far, whatever became of it.
  size_t num_characters() const { return num_characters_; }

 private:
  // A character of which bytes are missing ends here.
  void EndCharacter(std::vector<OutputEvent>* events);
  void Take(int32_t id, std::string_view text, std::vector<OutputEvent>* events);
  void AddContent(std::string_view text, std::vector<OutputEvent>* events);
  // Hands events on: content through the stop strings, nothing behind a match.
  void Filter(std::vector<OutputEvent>* events);

  Detokenizer detokenizer_;
  StopStrings stop_strings_;
  std::optional<OutputParser> parser_;
  std::vector<OutputEvent> parsed_;  // scratch
  size_t num_characters_ = 0;
  int32_t num_early_tokens_;  // still to come
};

}  // namespace lapidary
