#include "engine/sequence.h"

#include "grammar/matcher.h"

namespace lapidary {
namespace {

std::unique_ptr<grammar::Matcher> MakeFollower(const SequenceSpec& spec) {
  if (spec.grammar == nullptr || !spec.grammar->spells_forced_text()) return nullptr;
  // Logprobs come from rows that are sampled.
  const bool wants_logprobs = spec.sampling != nullptr && spec.sampling->num_logprobs >= 0;
  if (wants_logprobs || spec.num_prompt_logprobs >= 0) return nullptr;
  return std::make_unique<grammar::Matcher>(spec.grammar);
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

Sequence::Sequence(SequenceId id_, SequenceSpec spec_, SequencePages pages_, uint64_t hash_seed)
    : id(id_),
      spec(std::move(spec_)),
      tokens(spec.prompt),
      follower(MakeFollower(spec)),
      made_mask(spec.matcher),
      pages(std::move(pages_)),
      prefix_hashes(hash_seed, spec.identity) {
  tokens.insert(tokens.end(), spec.generated.begin(), spec.generated.end());
  if (follower && spec.matcher) *follower = *spec.matcher;
}

Sequence::~Sequence() = default;

std::vector<int32_t> Sequence::ForcedTokens(int32_t max_tokens, grammar::Work& work) {
  while (follower != nullptr && follower->num_accepted() < num_outputs()) {
    const Result<bool> is_accepted =
        follower->Accept(tokens[prompt_len() + follower->num_accepted()], &work);
    if (!is_accepted.ok() && is_accepted.error().kind == ErrorKind::kBusy) return {};
    if (!is_accepted.ok() || !*is_accepted) follower.reset();
  }
  if (follower == nullptr) return {};
  std::vector<int32_t> forced = follower->ForcedTokens(max_tokens, &work);
  forced.erase(std::ranges::find_first_of(forced, spec.stop_ids), forced.end());
  return forced;
}

std::shared_ptr<const grammar::Matcher> Sequence::MatcherBehindTokens() const {
  if (made_mask != nullptr) return made_mask;
  if (follower == nullptr || follower->num_accepted() != num_outputs()) return nullptr;
  return std::make_shared<const grammar::Matcher>(*follower);
}

}  // namespace lapidary
