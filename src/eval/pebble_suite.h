// The Pebble set asked of a model: greedy answers, judged, and compared with recorded ones.
#pragma once

#include <vector>

#include "engine/sequence.h"
#include "eval/pebble_items.h"
#include "eval/scores.h"
#include "front/text_model.h"

namespace lapidary {

struct PebbleRequest {
  SequenceSpec spec;
  bool starts_in_thought = false;  // the prompt opens the answer's thought
};

// The item through the model's chat template: greedy, to the first stop token, as the recorded
// answers were made. An error names the item.
Result<PebbleRequest> MakePebbleRequest(const TextModel& model, const PebbleItem& item);

// `ids` is what the model wrote, the stop token included.
PebbleAnswer JudgePebbleAnswer(const Tokenizer& tokenizer, const PebbleItem& item,
                               bool starts_in_thought, std::vector<int32_t> ids);

// Where answers have other tokens than the recorded ones.
struct PebbleAgreement {
  struct Difference {
    PebbleAnswer ours;
    PebbleAnswer recorded;
  };
  int64_t count = 0;
  std::vector<Difference> differences;

  int64_t num_agreeing() const { return count - std::ssize(differences); }
};

// Every answer must have a recorded one.
PebbleAgreement CompareAnswers(const std::vector<PebbleAnswer>& answers,
                               const PebbleAnswers& recorded);

}  // namespace lapidary
