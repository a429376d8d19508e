// A prompt as routers ask for it: its tokens and what stands for images and sounds, so that they
// can tell which server has computed its beginning. A body for /inference/v1/generate.
#pragma once

#include "server/answer_memory.h"
#include "server/generation.h"

namespace lapidary {

// The fields of a request that say which form its answer is to have, as they were sent.
OrderedJson FormFields(const OrderedJson& body);

// The job's prompts: as a list, or the only one alone. `form` are the request's FormFields.
void WriteRenderedPrompts(const GenerationJob& job, const ServedModel& model,
                          const MediaTokens& tokens, const OrderedJson& form, bool as_list,
                          AnswerText* text);

}  // namespace lapidary
