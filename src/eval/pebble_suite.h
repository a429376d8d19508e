// The Pebble set asked of a model: greedy answers, judged.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/pebble_items.h"
#include "eval/scores.h"
#include "front/text_model.h"
#include "session/request.h"

namespace lapidary {

// The item through the model's chat template: greedy, to the first stop token, as the recorded
// answers were made. An error names the item.
Result<Request> MakePebbleRequest(const TextModel& model, const PebbleItem& item);

// `ids` is what the model wrote, the stop token included.
PebbleAnswer JudgePebbleAnswer(const Tokenizer& tokenizer, const PebbleItem& item,
                               bool starts_in_thought, std::vector<int32_t> ids);

// Text of what a model wrote, control tokens spelled out.
std::string AnswerText(const Tokenizer& tokenizer, std::span<const int32_t> ids);

}  // namespace lapidary
