// The evaluation set of the Pebble models, and recorded answers to it.
//
// One JSON object a line; tools/pebble/evalset.py writes the set and explains its fields,
// tools/pebble/evaluate.py records the answers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace lapidary {

struct PebbleItem {
  // What an answer's content has to be, besides well-formed.
  enum class Check {
    kExact,     // the reference's content
    kOneOf,     // one of `answers`
    kMinWords,  // `min_words` words or more
    kJson,      // the reference's JSON value
    kToolCall,  // the reference's calls and arguments
    kNoCall,    // some text and no call
  };

  std::string id;
  std::string task;
  std::string bin;  // of a recall item: its prompt's length; else empty
  nlohmann::ordered_json messages;
  std::optional<nlohmann::ordered_json> tools;
  bool enable_thinking = false;
  int32_t stop = 0;  // the token that has to end the answer
  Check check = Check::kExact;
  std::string reference_content;          // for kExact and kJson
  std::vector<std::string> wanted_calls;  // for kToolCall, as the model has to write them
  std::vector<std::string> answers;       // for kOneOf
  int64_t min_words = 0;                  // for kMinWords

  // From one line of the set; `where` begins the messages.
  static Result<PebbleItem> Parse(std::string_view line, std::string_view where);
};

Result<std::vector<PebbleItem>> LoadPebbleItems(const std::filesystem::path& path);

// An answer as it is recorded: the same fields in files read and written.
struct PebbleAnswer {
  std::string id;  // of the item
  bool is_right = false;
  std::string text;  // control tokens spelled out
  std::vector<int32_t> ids;
};

// By the item's id.
using PebbleAnswers = std::map<std::string, PebbleAnswer>;
Result<PebbleAnswers> LoadPebbleAnswers(const std::filesystem::path& path);
Status SavePebbleAnswers(const std::vector<PebbleAnswer>& answers,
                         const std::filesystem::path& path);

// MODEL-answers.jsonl beside the model's directory or in it, or another set's (media-answers); none
// when there is no such file.
std::optional<std::filesystem::path> FindPebbleAnswers(const std::filesystem::path& model_dir,
                                                       std::string_view set = "answers");

}  // namespace lapidary
