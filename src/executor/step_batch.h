// What an executor is asked to do in one step, and what it answers: plain data, no device types.
//
// A slot is where an executor keeps what lives as long as a request: how its tokens are drawn, what
// it has said, its page tables, its length and its last token. It is bound once, when a sequence is
// admitted; steps name slots and hold integers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/soft_tokens.h"
#include "executor/step_positions.h"
#include "kv/sequence_pages.h"
#include "sampling/sampler.h"
#include "sampling/sampling_params.h"

namespace lapidary {

namespace grammar {
class CompiledGrammar;  // grammar/matcher.h
class Matcher;
}  // namespace grammar

class Adapter;  // adapter/adapter.h

// Gives a slot to a sequence; what the slot held before is forgotten. The same sequence may be
// bound again to tell it of tokens that it has not sampled.
struct SlotBinding {
  int32_t slot = 0;
  std::shared_ptr<const SamplingParams> sampling = nullptr;  // null: nothing is sampled
  int32_t num_score_top = 0;  // likeliest tokens to name beside a score, at most kMaxLogprobs
  // Draws are numbered from the first token behind the prompt, so a token depends on its row, the
  // seed and its place alone.
  int32_t prompt_len = 0;
  int32_t max_len = 0;  // tokens the sequence ends with at most; 0: not known
  // Only tokens that it allows are sampled; null: any.
  std::shared_ptr<const grammar::CompiledGrammar> grammar = nullptr;
  // Where the grammar stands behind `tokens`; null: they say it.
  std::shared_ptr<const grammar::Matcher> matcher = nullptr;
  // Pictures and sounds of the prompt; null: none. For executors that take media. Where images see
  // both ways (ModelPlan), the rows of one come in one step.
  std::shared_ptr<const SoftTokenRuns> media = nullptr;
  // Its rows are computed with this LoRA adapter; null: with the model alone. For executors that
  // take adapters.
  std::shared_ptr<const Adapter> adapter = nullptr;
  // Known so far, where sampling has penalties or a grammar, or text that repeats is drafted: the
  // prompt, and what came behind it before the slot was bound (the sequence was preempted, or
  // late).
  std::vector<int32_t> tokens = {};
};

// Who proposes drafts.
enum class DraftSource : uint8_t {
  kAssistant,  // a smaller model
  kForced,     // the grammar: what it leaves no choice about, or what answers in it said there
  kNgram,      // the text so far, where its last tokens came before
};
inline constexpr int kNumDraftSources = 3;
const char* DraftSourceName(DraftSource source);

// How many drafts each source may propose for a sequence in a step.
struct DraftQuota {
  int32_t forced = 0;
  int32_t ngram = 0;
  int32_t assistant = 0;
  int32_t least_match = 0;  // of the last tokens, for `ngram`: how many must have come before

  int32_t most() const { return std::max({forced, ngram, assistant}); }
};

// The rows of one sequence in a step: a chunk of its prompt, its next token, or that token with
// drafts behind it. Their ids lie in StepBatch::token_ids, sequence after sequence.
//
//   outputs (trailing rows that produce logits) = [ scored | logits only | 1 + num_drafts sampled ]
//
struct SequenceStep {
  int32_t slot = 0;
  // Tokens before the first row. From the slot's end on (kTokenFromSlot) this is the most it can
  // be, and `num_uncertain` of them may turn out to be drafts that were rejected.
  int32_t num_cached = 0;
  int32_t num_uncertain = 0;
  int32_t num_rows = 0;
  int32_t num_outputs = 0;
  // The first outputs only give the logprobs of what follows them in the prompt: ids in
  // StepBatch::scored_ids, sequence after sequence.
  int32_t num_scored = 0;
  // The last row and its drafts are sampled. Row i + 1 counts only if its draft is the token of
  // row i (sampling/accept.h).
  bool samples = false;
  int32_t num_drafts = 0;  // trailing rows
  // Of drafts that the executor makes, quota->most() in all: the first source that has any proposes
  // them, forced text before repeated text before the assistant, and rows behind its last one are
  // left out. None: the assistant proposes all of them. Only where Executor::drafts_text().
  std::optional<DraftQuota> quota = {};

  int32_t num_sampled() const { return samples ? num_drafts + 1 : 0; }
};

// In this order: bindings, table entries, page copies, rows.
struct StepBatch {
  std::vector<SlotBinding> bindings;
  // What the slots' page tables lack. Blocks that hold cached tokens in reach of the rows are read;
  // blocks of the rows themselves are written, except where the table has the scratch page (rows of
  // a long chunk that nobody will look at again).
  std::vector<PageTableEntry> table_entries;
  std::vector<PageCopy> page_copies;  // done in order
  std::vector<int32_t> token_ids;     // rows of all sequences
  std::vector<int32_t> scored_ids;    // of all sequences
  std::vector<SequenceStep> sequences;
  bool return_logits = false;  // hand the outputs' logits back (tests, `lapidary logits`)
  bool return_drafts = false;  // and what the drafter gave (tests, `lapidary draft`)
};

struct SequenceOutput {
  // With sampling: the accepted drafts and the token after them, so one token without drafts.
  std::vector<SampledToken> tokens;
  std::vector<SampledToken> scores;  // the id, its logprob, the likeliest
  // With a quota: the drafts that there were, and whose.
  int32_t num_drafts = 0;
  DraftSource draft_source = DraftSource::kAssistant;
  int32_t match_length = 0;  // of text that repeats: last tokens that had come before
  // This sequence alone has failed (a row without a finite logit, a grammar beyond its limits). It
  // is over: what steps submitted before this was known say about it means nothing.
  std::optional<std::string> error;
  // With an error: what the request asked for is the reason, not what the model computed.
  bool blames_request = false;
  // The mask of the row behind `tokens`, which all count, takes longer than a step may. The slot is
  // over as after an error; bound again, it goes on. The sequence is left out until its mask can be
  // made at once, which is what MaskMaker sees to.
  bool is_late = false;
};

struct StepOutput {
  std::vector<SequenceOutput> sequences;
  std::vector<float> logits;  // [outputs of all sequences in order, vocab]
  // Of the drafter, for all sequences in order: what it proposed, and the logits of its head, -inf
  // where that scored nothing: [drafts], [drafts, vocab].
  std::vector<int32_t> draft_ids;
  std::vector<float> draft_logits;
  // How long the device was at it, by its own clock. None: as long as the caller waited.
  std::optional<double> device_ms;
};

}  // namespace lapidary
