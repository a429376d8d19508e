#include "engine/generated_tokens.h"

#include <unordered_set>

#include "grammar/matcher.h"

namespace lapidary {

Status CheckGenerated(const SequenceSpec& spec, int32_t vocab_size) {
  if (spec.generated.empty()) return {};
  const auto num_generated = static_cast<int64_t>(spec.generated.size());
  if (num_generated >= spec.max_new_tokens) {
    return MakeError("resume: an answer of at most {} tokens does not go on behind {}",
                     spec.max_new_tokens, num_generated);
  }
  if (spec.num_prompt_logprobs >= 0) {
    return MakeError("resume and the prompt's logprobs exclude each other");
  }
  const std::unordered_set<int32_t> stops(spec.stop_ids.begin(), spec.stop_ids.end());
  std::unordered_set<int32_t> allowed;  // empty: every token may be drawn
  std::unordered_set<int32_t> suppressed;
  if (spec.sampling != nullptr) {
    allowed.insert(spec.sampling->allowed_tokens.begin(), spec.sampling->allowed_tokens.end());
    suppressed.insert(spec.sampling->suppress_tokens.begin(), spec.sampling->suppress_tokens.end());
  }
  for (int64_t idx = 0; idx < num_generated; ++idx) {
    const int32_t id = spec.generated[idx];
    if (id < 0 || id >= vocab_size) {
      return MakeError("resume: token {} has the id {}, outside the vocabulary [0, {})", idx, id,
                       vocab_size);
    }
    if (stops.contains(id)) {
      return MakeError("resume: token {} ({}) stops the answer: nothing comes behind it", idx, id);
    }
    if ((!allowed.empty() && !allowed.contains(id)) || suppressed.contains(id)) {
      return MakeError("resume: token {} ({}) is none that may be generated", idx, id);
    }
  }
  return {};
}

Result<std::shared_ptr<const grammar::Matcher>> MatchGenerated(
    std::shared_ptr<const grammar::CompiledGrammar> grammar, std::span<const int32_t> generated,
    grammar::Work* work) {
  grammar::Work all_work(grammar::Work::kMaxMaskSteps);
  auto matcher = std::make_shared<grammar::Matcher>(std::move(grammar));
  for (size_t idx = 0; idx < generated.size(); ++idx) {
    const Result<bool> is_accepted =
        matcher->Accept(generated[idx], work != nullptr ? work : &all_work);
    if (!is_accepted.ok()) {
      if (work == nullptr && is_accepted.error().kind == ErrorKind::kBusy) {
        return MakeError("resume: reading {} tokens under the answer's form takes too long",
                         generated.size());
      }
      return is_accepted.error();
    }
    if (!*is_accepted) {
      return MakeError("resume: token {} ({}) does not fit the answer's form or rules", idx,
                       generated[idx]);
    }
  }
  return std::shared_ptr<const grammar::Matcher>(std::move(matcher));
}

}  // namespace lapidary
