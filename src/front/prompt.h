// From text to the token ids of a prompt.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "front/text_model.h"

namespace lapidary {

// Fails unless `text` is well-formed UTF-8; `what` names it in the message.
Status CheckUtf8(std::string_view text, std::string_view what);

// Raw text, in which special tokens may be spelled out; <bos> is put in front unless it is there.
// An empty text has no ids.
std::vector<int32_t> EncodeRawPrompt(const Tokenizer& tokenizer, std::string_view text);

struct ChatPrompt {
  std::vector<int32_t> ids;
  // For SequenceSpec: where the prompt of the next turn can go on.
  std::vector<int32_t> cache_points;
  // What is generated first is reasoning.
  bool starts_in_thought = false;
};

// A text that is gone on with: EncodeRawPrompt, or without `add_bos` just its tokens, and where a
// chat in it can go on. An error where it has no tokens.
Result<ChatPrompt> EncodeTextPrompt(const Tokenizer& tokenizer, std::string_view text,
                                    bool add_bos = true);

// The conversation through the checkpoint's own template. Text from messages is plain text,
// whatever it spells.
Result<ChatPrompt> EncodeChatPrompt(const TextModel& model, ChatInput input);

// The last prefix of a chat prompt that the next turn's prompt is sure to begin with: up to the
// model's turn, and not the thought in it, which templates leave out of the history. At most
// ids.size() - 1, for the last token is always computed; 0 when there is no turn.
int32_t NextTurnPoint(const Tokenizer& tokenizer, std::span<const int32_t> ids);

// Where a prompt that opens with a system turn leaves it: conversations with the same instructions
// and tools begin alike up to there. 0 when there is no such turn, or one too short to be worth
// keeping.
int32_t SystemTurnEnd(const Tokenizer& tokenizer, std::span<const int32_t> ids);

// Both of the above, for SequenceSpec.
std::vector<int32_t> ChatCachePoints(const Tokenizer& tokenizer, std::span<const int32_t> ids);

}  // namespace lapidary
