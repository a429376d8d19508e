#include "eval/pebble_suite.h"

#include "eval/pebble_judge.h"
#include "front/prompt.h"
#include "text/detokenizer.h"

namespace lapidary {
namespace {

// tools/pebble/generate.py: the longest answer, and the tokens that end one.
constexpr int32_t kMaxNewTokens = 160;
constexpr int32_t kStopIds[] = {1, 106, 50};

constexpr std::string_view kOpenedThought = "<|channel>thought\n";

}  // namespace

Result<Request> MakePebbleRequest(const TextModel& model, const PebbleItem& item) {
  ChatInput input;
  input.messages = item.messages;
  input.tools = item.tools;
  input.enable_thinking = item.enable_thinking;
  Result<ChatPrompt> prompt = EncodeChatPrompt(model, std::move(input));
  if (!prompt.ok()) return MakeError("item {}: {}", item.id, prompt.error().message);
  Request request;
  request.prompt = std::move(*prompt);
  request.prompt.cache_points.clear();  // No item goes on where another did.
  request.goes_on = false;
  request.max_new_tokens = kMaxNewTokens;
  request.stop_ids.assign(std::begin(kStopIds), std::end(kStopIds));
  request.ignore_eos = true;
  auto sampling = std::make_shared<SamplingParams>();
  sampling->temperature = 0.0f;
  request.sampling = std::move(sampling);
  return request;
}

std::string AnswerText(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string text;
  Detokenizer detokenizer(tokenizer, /*skip_special=*/false);
  for (const int32_t id : ids) {
    // A row that only pads the embedding has no text.
    if (const Status known = detokenizer.Push(id, &text); !known.ok()) continue;
  }
  detokenizer.Finish(&text);
  return text;
}

PebbleAnswer JudgePebbleAnswer(const Tokenizer& tokenizer, const PebbleItem& item,
                               bool starts_in_thought, std::vector<int32_t> ids) {
  PebbleAnswer answer;
  answer.id = item.id;
  answer.text = AnswerText(tokenizer, ids);
  answer.is_right = IsRightAnswer(
      item, starts_in_thought ? std::string(kOpenedThought) + answer.text : answer.text);
  answer.ids = std::move(ids);
  return answer;
}

}  // namespace lapidary
