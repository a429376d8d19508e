// One request's token sequence on its way through the scheduler.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/text_trust.h"
#include "executor/soft_tokens.h"
#include "kv/prefix_cache.h"
#include "kv/sequence_pages.h"
#include "sampling/sampling_params.h"

namespace lapidary {

namespace grammar {
class CompiledGrammar;  // grammar/matcher.h
class Matcher;
}  // namespace grammar

class Adapter;  // adapter/adapter.h

// Given by whoever adds sequences, in order of arrival; 0 is nobody's.
using SequenceId = uint64_t;

enum class FinishReason { kStop, kLength, kCancelled, kError };
const char* FinishReasonName(FinishReason reason);

// What the caller wants; never changes.
struct SequenceSpec {
  std::vector<int32_t> prompt;
  // The answer's first tokens, which another sequence has generated, perhaps elsewhere: this one
  // goes on behind them as one does that was preempted there (CheckGenerated). Counted in
  // max_new_tokens, and not given again.
  std::vector<int32_t> generated;
  int32_t max_new_tokens = 1;     // 0: the prompt alone is computed
  std::vector<int32_t> stop_ids;  // empty: only the length ends it
  std::shared_ptr<const SamplingParams> sampling;
  // What may be generated; null: anything. Only where the executor takes constraints.
  std::shared_ptr<const grammar::CompiledGrammar> grammar;
  // Where it stands behind `generated`; null: Engine::Submit finds out (MatchGenerated).
  std::shared_ptr<const grammar::Matcher> matcher;
  // Likeliest tokens to name beside the logprob of every prompt token but the first; -1: the
  // prompt's logprobs are not wanted.
  int32_t num_prompt_logprobs = -1;
  // Positions in the prompt at which a later prompt may go on, ascending, each below its size.
  std::vector<int32_t> cache_points;
  // A later prompt may go on where this sequence ends.
  bool cache_at_end = true;
  // Pictures and sounds of the prompt; null: none. Only where the executor takes media. `identity`
  // has their digests.
  std::shared_ptr<const SoftTokenRuns> media;
  // The LoRA adapter that all of it is computed with; null: none. Only where the executor takes
  // adapters.
  std::shared_ptr<const Adapter> adapter;
  // Media behind placeholder tokens of the prompt, the adapter (of Engine::Submit's making) and the
  // salt.
  PrefixIdentity identity;
  // Another sequence with the same prompt: this one waits until that prompt is in the cache. 0:
  // none.
  SequenceId leader = 0;
  // The lower, the earlier it is served, and the later preempted; equal ones in order of arrival.
  int32_t priority = 0;
};

// Lengths of a sequence:
//
//   0 ............. num_planned ............. tokens.size() .. + num_pending
//   in steps planned (run or queued)  | to be computed       | sampled by steps not collected yet
//
// With drafts in steps not collected yet, both may really be larger, by pages.num_uncertain() at
// most: what is planned then is planned for every length the sequence may have.
struct Sequence {
  Sequence(SequenceId id_, SequenceSpec spec_, SequencePages pages_, uint64_t hash_seed);
  ~Sequence();

  int32_t prompt_len() const { return static_cast<int32_t>(spec.prompt.size()); }
  int32_t num_outputs() const { return static_cast<int32_t>(tokens.size()) - prompt_len(); }
  int32_t known_len() const { return static_cast<int32_t>(tokens.size()) + num_pending; }
  // Rows that could be planned now.
  int32_t num_open_rows() const {
    return (spec.max_new_tokens > 0 ? known_len() : num_prompt_only_rows()) - num_planned;
  }
  bool is_prefilling() const { return num_open_rows() > 1; }
  // With nothing to generate, nobody needs the row of the prompt's last token; but a step has one.
  int32_t num_prompt_only_rows() const { return std::max(prompt_len() - 1, 1); }
  // Rows behind the longest it may be that its last token can still need.
  int32_t num_rows_left() const {
    return prompt_len() + spec.max_new_tokens - 1 - pages.max_length();
  }
  bool wants_scores() const { return spec.num_prompt_logprobs >= 0 && num_scored < prompt_len(); }

  // Whether it is served first.
  bool ComesBefore(const Sequence& other) const {
    return spec.priority != other.spec.priority ? spec.priority < other.spec.priority
                                                : id < other.id;
  }

  const SequenceId id;
  const SequenceSpec spec;

  std::vector<int32_t> tokens;  // prompt, then what was generated, here or before
  int32_t num_planned = 0;
  int32_t num_pending = 0;  // of each step that samples one: more only with drafts
  // Prompt tokens whose logprobs planned steps give; the first is counted in, it has none. Survives
  // preemption: steps that are planned run.
  int32_t num_scored = 1;
  int32_t slot = -1;             // -1: waiting
  bool continues_slot = false;   // a step that samples is planned: the slot has its next token
  bool must_bind_again = false;  // what the slot holds is out of date
  // The mask behind `tokens` is late: no step takes the sequence before it can be made at once.
  bool awaits_mask = false;
  std::shared_ptr<const grammar::Matcher> made_mask;  // with it, once it can; for the slot
  int64_t num_mask_steps = 0;                         // that late masks have taken
  TextTrust ngram_trust;
  SequencePages pages;
  PrefixHashes prefix_hashes;  // of `tokens`, or of fewer: extended when asked for
  // Up to here the prefix cache has been offered the pages of a group.
  std::array<int32_t, kNumKvGroups> num_offered{};
  size_t num_cache_points_taken = 0;
  int32_t resumed_at = 0;                // tokens that were found in the prefix cache; 0: none
  bool parts_from_other = false;         // other sequences went on from there in another way
  int32_t num_cached_prompt_tokens = 0;  // found in the prefix cache when first admitted
  int num_preemptions = 0;
};

}  // namespace lapidary
