// A request to a session. Plain data; whatever is left out is as the checkpoint says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lapidary/export.h"

namespace lapidary::v0 {

struct ChatDetails;  // images and audio of a prompt, and how the answer to a conversation is read

// Made by Session::EncodePrompt and EncodeChat, or of ids that are used as they stand.
struct Prompt {
  std::vector<int32_t> ids;
  // Where a later prompt may continue: what is computed up to there is kept.
  std::vector<int32_t> cache_points = {};
  // Its images and audio. The answer to a conversation is split into reasoning, text and tool
  // calls.
  std::shared_ptr<const ChatDetails> chat = {};
  // What is computed of a prompt is used only for prompts that have the same; empty: for all that
  // have none.
  std::string cache_salt = {};
};

// How tokens are sampled. Those left out are the checkpoint's own (generation_config.json).
struct Sampling {
  std::optional<float> temperature = {};                   // 0: always the most probable token
  std::optional<int32_t> top_k = {};                       // 0 or -1: off
  std::optional<float> top_p = {};                         // (0, 1]; 1: off
  std::optional<float> min_p = {};                         // [0, 1]; 0: off
  std::optional<float> repetition_penalty = {};            // 1: off
  std::optional<float> presence_penalty = {};              // [-2, 2]; 0: off
  std::optional<float> frequency_penalty = {};             // [-2, 2]; 0: off
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token id, added to its logit
  std::vector<int32_t> allowed_token_ids = {};  // nothing else is sampled; empty: all may be
  std::optional<uint64_t> seed = {};            // none: a random one
};

// What the answer must be.
struct Constraint {
  enum class Kind { kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar, kStructuralTag };
  Kind kind = Kind::kJsonObject;
  std::string text = {};                  // the schema, expression, grammar or tag
  std::vector<std::string> choices = {};  // of kChoice
};

struct Request {
  Prompt prompt;
  Sampling sampling = {};
  int num_answers = 1;                       // each with its own seed: the given one plus its index
  std::optional<int32_t> max_tokens = {};    // none: what the context leaves; 0: the prompt alone
  int32_t min_tokens = 0;                    // before them nothing stops it
  std::vector<std::string> bad_words = {};   // avoided, as they stand or after a space
  std::vector<std::string> stop = {};        // the answer ends before any of these
  std::vector<int32_t> stop_token_ids = {};  // beside the checkpoint's own
  bool include_stop = false;                 // the text keeps the stop string
  int32_t priority = 0;                      // the lowest is served first
  bool ignore_eos = false;                   // the checkpoint's own stop tokens do not stop it
  bool skip_special_tokens = true;           // they have no text
  int num_logprobs = -1;         // -1: none; 0: of the sampled token; up to 20: also of the best
  int num_prompt_logprobs = -1;  // the same for every prompt token but the first
  std::optional<Constraint> constraint = {};
  // Of a conversation: tokens after which thoughts must end.
  std::optional<int32_t> thinking_token_budget = {};
};

}  // namespace lapidary::v0
