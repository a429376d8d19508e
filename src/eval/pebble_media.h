// Questions about images and audio, asked of the Pebble models that see and hear.
//
// One JSON object a line; tools/pebble/media_evalset.py writes the set and explains its fields,
// tools/pebble/evaluate_media.py records answers.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "eval/pebble_drawings.h"
#include "eval/pebble_items.h"
#include "front/text_model.h"
#include "model/plan.h"
#include "session/request.h"
#include "towers/media_encoder.h"

namespace lapidary {

struct PebbleMediaItem {
  std::string id;
  std::string task;
  std::string ask;
  std::string answer;             // the right one, to the letter
  std::vector<PebbleCell> cells;  // of a picture; empty: it is a sound
  std::vector<int> tones;
  int loudness = 0;

  bool is_picture() const { return !cells.empty(); }

  // From one line of the set; `where` begins the messages.
  static Result<PebbleMediaItem> Parse(std::string_view line, std::string_view where);
};

Result<std::vector<PebbleMediaItem>> LoadPebbleMediaItems(const std::filesystem::path& path);

// Greedy, as the recorded answers were made: the picture or sound, then the question.
Result<Request> MakePebbleMediaRequest(const TextModel& text, const ModelPlan& plan,
                                       MediaEncoder& encoder, const PebbleMediaItem& item);

// Right is the item's answer to the letter, and then the end of the turn. `ids` is what the model
// wrote, the stop token included.
PebbleAnswer JudgePebbleMediaAnswer(const Tokenizer& tokenizer, const PebbleMediaItem& item,
                                    std::vector<int32_t> ids);

}  // namespace lapidary
