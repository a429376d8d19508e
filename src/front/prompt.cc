#include "front/prompt.h"

#include <algorithm>

#include "front/video_text.h"
#include "text/utf8.h"

namespace lapidary {

Status CheckUtf8(std::string_view text, std::string_view what) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char character = ReadUtf8(text.substr(at));
    if (character.status != Utf8Status::kComplete) {
      return MakeError("{} is not valid UTF-8: byte {:#04x} at offset {}", what,
                       static_cast<uint8_t>(text[at]), at);
    }
    at += character.num_bytes;
  }
  return {};
}

std::vector<int32_t> EncodeRawPrompt(const Tokenizer& tokenizer, std::string_view text) {
  if (text.empty()) return {};
  std::vector<int32_t> ids = tokenizer.Encode(text, SpecialTokens::kParse);
  const int32_t bos = tokenizer.bos_id();
  if (bos >= 0 && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
  return ids;
}

Result<ChatPrompt> EncodeTextPrompt(const Tokenizer& tokenizer, std::string_view text,
                                    bool add_bos) {
  ChatPrompt prompt;
  prompt.ids =
      add_bos ? EncodeRawPrompt(tokenizer, text) : tokenizer.Encode(text, SpecialTokens::kParse);
  if (prompt.ids.empty()) return MakeError("the prompt has no tokens");
  prompt.cache_points = ChatCachePoints(tokenizer, prompt.ids);
  return prompt;
}

Result<ChatPrompt> EncodeChatPrompt(const TextModel& model, ChatInput input) {
  if (!model.tokenizer.ok()) return model.tokenizer.error();
  if (!model.chat_template.ok()) return model.chat_template.error();
  const std::vector<std::string> video_texts = std::move(input.video_texts);
  ASSIGN_OR_RETURN(std::vector<TextSegment> segments,
                   model.chat_template->RenderPrompt(std::move(input)));
  if (!video_texts.empty()) {
    RETURN_IF_ERROR(ReplaceVideoPlaceholders(video_texts, &segments));
  }
  ChatPrompt prompt;
  prompt.ids = model.tokenizer->Encode(segments);
  if (prompt.ids.empty()) return MakeError("the chat template made an empty prompt");
  prompt.starts_in_thought = EndsInsideThought(segments);
  prompt.cache_points = ChatCachePoints(*model.tokenizer, prompt.ids);
  return prompt;
}

std::vector<int32_t> ChatCachePoints(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::vector<int32_t> points;
  for (const int32_t point : {SystemTurnEnd(tokenizer, ids), NextTurnPoint(tokenizer, ids)}) {
    if (point > 0 && (points.empty() || point > points.back())) points.push_back(point);
  }
  return points;
}

int32_t SystemTurnEnd(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  constexpr int64_t kMinTokens = 64;
  const std::vector<int32_t> opening =
      tokenizer.Encode("<bos><|turn>system\n", SpecialTokens::kParse);
  const auto turn_id = tokenizer.TokenToId("<|turn>");
  if (!turn_id || ids.size() <= opening.size() ||
      !std::equal(opening.begin(), opening.end(), ids.begin())) {
    return 0;
  }
  const auto next_turn = std::find(ids.begin() + std::ssize(opening), ids.end(), *turn_id);
  const int64_t end = next_turn - ids.begin();
  return next_turn == ids.end() || end < kMinTokens ? 0 : static_cast<int32_t>(end);
}

int32_t NextTurnPoint(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  const auto turn_id = tokenizer.TokenToId("<|turn>");
  const auto channel_id = tokenizer.TokenToId("<|channel>");
  if (!turn_id || ids.empty()) return 0;
  const auto last_turn = std::find(ids.rbegin(), ids.rend(), *turn_id);
  if (last_turn == ids.rend()) return 0;
  const auto thought = channel_id ? std::find(last_turn.base(), ids.end(), *channel_id) : ids.end();
  const auto point = std::min<int64_t>(thought - ids.begin(), std::ssize(ids) - 1);
  return static_cast<int32_t>(point);
}

}  // namespace lapidary
