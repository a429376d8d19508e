// What a caller asks a session for. Plain data; whatever is left out is as the model likes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/soft_tokens.h"
#include "front/prompt.h"
#include "kv/prefix_hashes.h"
#include "sampling/sampling_params.h"

namespace lapidary {

namespace grammar {
class CompiledGrammar;  // grammar/matcher.h
class Matcher;
}  // namespace grammar

class Adapter;  // adapter/adapter.h

struct Request {
  ChatPrompt prompt;
  // The answer's first tokens, where another request has generated them: this one goes on with it.
  // They count in max_new_tokens and in the usage, and do not come again.
  std::vector<int32_t> generated = {};
  std::optional<int32_t> max_new_tokens = {};  // none: what the context leaves; 0: the prompt alone
  std::shared_ptr<const SamplingParams> sampling = {};  // none: the checkpoint's defaults
  // What the answer may be (Session::CompileConstraint); none: anything. It ends where the
  // checkpoint's stop tokens end it.
  std::shared_ptr<const grammar::CompiledGrammar> grammar = {};
  std::shared_ptr<const grammar::Matcher> matcher = {};  // behind `generated`, if known
  // Images and audio behind placeholder tokens of the prompt, and their digests
  // (session/prompt_media.h).
  std::shared_ptr<const SoftTokenRuns> media = {};
  std::vector<MediaDigest> media_digests = {};
  std::shared_ptr<const Adapter> adapter = {};  // a LoRA adapter; none: the session's own, if any
  std::vector<int32_t> stop_ids = {};           // beside the checkpoint's own
  bool ignore_eos = false;                      // the checkpoint's own do not stop it
  // Likeliest tokens to name beside the logprob of every prompt token but the first; -1: the
  // prompt's logprobs are not wanted.
  int32_t num_prompt_logprobs = -1;
  std::string cache_salt = {};  // prefixes are shared only with requests that have the same
  int32_t priority = 0;         // the lower, the earlier it is served
  bool goes_on = true;  // a later prompt may go on where this answer ends: it is kept in the cache
};

}  // namespace lapidary
