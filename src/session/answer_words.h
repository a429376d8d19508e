// The tokens that a simulated device makes its answers of: words of the model's own vocabulary.
#pragma once

#include "executor/simulated/made_up_text.h"
#include "front/text_model.h"

namespace lapidary {

// Empty lists where the model knows no text. The size is left to whoever knows the model.
simulated::Vocabulary AnswerWords(const TextModel& text);

}  // namespace lapidary
