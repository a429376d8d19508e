// Decides what runs in the next step. No device, no text, no clock, one thread.
//
// There is no prefill phase and no decode phase: a sequence has known tokens and planned tokens,
// and a step closes the gap. A step takes the sequences that need one row first (decoding), then
// chunks of the others in order of arrival, then admits waiting ones, within a budget of rows and,
// beside decodes, of time (StepCost). When pages run out the prefix cache gives way first, then the
// youngest sequence, which is computed again later.
//
// Nothing waits for ever: a sequence is only accepted if it fits the pool alone, sequences are
// served in order of arrival, and a part of the budget is kept from decoding sequences. Only those
// of another priority come before, or behind: whoever gives priorities answers for that. Nor does a
// long prompt hold up short ones: a part of what is left is kept for those behind it that are much
// shorter, the shortest first.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sequence.h"
#include "engine/step_cost.h"
#include "executor/step_batch.h"

namespace lapidary {

struct SchedulerLimits {
  int max_num_seqs = 256;             // running at once
  int max_num_batched_tokens = 2048;  // rows of a step, but for images that must not be cut
  int max_step_rows = std::numeric_limits<int>::max();  // with those: what the executor can hold
  int max_scored_rows = 64;   // of those, prompt rows whose logprobs are wanted
  int max_model_len = 0;      // tokens of a sequence; 0: the model's context
  int sliding_slack = 32;     // tokens held behind the window
  int num_drafts = 0;         // of a decoding sequence at most, by the executor's assistant,
  int num_forced_drafts = 0;  // of text that its grammar forces,
  int num_ngram_drafts = 0;   // and of text that repeats
  bool prefix_caching = true;
  // A step that carries decodes takes at most so long, or so many times what a step takes when all
  // prompts are answers too, whichever is more: then answers have a steady pace, and prompts are
  // not held up for one that will end with them. 0 and 0: as long as its rows take. Prompts get a
  // part of it in any case.
  double max_step_ms = 0.0;
  double max_step_growth = 0.0;
  // A step without decodes takes at most this long, because a short prompt that arrives waits for
  // the steps in flight. It may take longer where shorter steps would slow prompts down (see
  // PromptsAloneMs). 0: as long as its rows take.
  double max_prompt_ms = 0.0;
};

// A planned step: the batch for the executor, and what the scheduler must know to take its output.
struct StepPlan {
  struct Entry {
    SequenceId id = 0;
    int32_t slot = 0;
    bool samples = false;
    bool ends_prompt = false;  // the last of a sequence that generates nothing
    int32_t num_cached = 0;
    int32_t num_rows = 0;
    int32_t num_drafts = 0;
    std::optional<DraftQuota> quota = {};  // of them
  };
  StepBatch batch;
  std::vector<Entry> entries;  // as batch.sequences
  StepShape shape;             // of the batch, without text that may be drafted

  // Of the step as it was run.
  StepShape ShapeRun(const StepOutput& output) const;
};

// What a finished step means for one sequence.
struct SequenceProgress {
  SequenceId id = 0;
  std::vector<SampledToken> prompt_logprobs;  // of the next prompt tokens, from the second on
  std::vector<SampledToken> tokens;           // new ones, the stop token included
  // Of a round with drafts: whose, how many there were, and how many the target agreed with (beyond
  // a stop token too).
  DraftSource draft_source = DraftSource::kAssistant;
  int32_t match_length = 0;  // SequenceOutput
  int32_t num_drafts = 0;
  int32_t num_accepted = 0;
  std::optional<FinishReason> finish;
  std::string error;            // with kError
  bool blames_request = false;  // with it: what the request asked for is the reason
};

// A sequence whose mask a step did not wait for.
struct LateMask {
  SequenceId id = 0;
  std::shared_ptr<const grammar::CompiledGrammar> grammar;
  std::vector<int32_t> outputs;  // behind which the mask is wanted
  int64_t max_steps = 0;         // of work that are left to the sequence
};

struct SchedulerStats {
  int num_running = 0;
  int num_waiting = 0;
  int num_late = 0;  // of both, waiting for a mask
  int num_free_pages = 0;
  int num_reclaimable_pages = 0;
  std::array<int, kNumKvGroups> num_cached_pages{};  // of those, by group
  int num_pages = 0;                                 // that can be handed out
  std::array<int, kNumKvGroups> num_pages_in_use{};  // by sequences
  uint64_t num_preemptions = 0;
  uint64_t num_prompt_tokens = 0;      // of admitted sequences
  uint64_t num_prefix_hit_tokens = 0;  // of those, found in the prefix cache
  uint64_t num_evicted_pages = 0;      // that the prefix cache gave up
  uint64_t num_hashed_tokens = 0;      // for the prefix cache; each token of a sequence once
};

class Scheduler {
 public:
  // For tests, in place of the executor's drafter: drafts for a decoding sequence, at most
  // `max_drafts`; may return none. The sequence may be behind by what is not collected yet.
  using TestDrafts = std::function<std::vector<int32_t>(const Sequence&, int32_t max_drafts)>;

  // `plan` and `layout` must outlive the scheduler.
  Scheduler(const ModelPlan& plan, const KvLayout& layout, int num_pages,
            const SchedulerLimits& limits, uint64_t hash_seed);
  ~Scheduler();

  // `id` is larger than all before it. An error when the sequence can never run (too long for the
  // context or for the pool); nothing is kept then.
  Status Add(SequenceId id, SequenceSpec spec);
  // Whether the sequence could run at all.
  static Status CheckFits(const SequenceSpec& spec, const ModelPlan& plan, const KvLayout& layout,
                          int num_pages, const SchedulerLimits& limits);

  // Ends a sequence now; false when it is not there any more. Its tokens so far stay in the prefix
  // cache if its spec says so.
  bool Cancel(SequenceId id);

  bool has_sequences() const { return !sequences_.empty(); }
  const Sequence* Find(SequenceId id) const;

  void set_draft_source(TestDrafts source) { draft_source_ = std::move(source); }
  // For the steps planned from now on; at most SchedulerLimits::num_drafts.
  void set_num_drafts(int num_drafts) { num_drafts_ = std::min(num_drafts, limits_.num_drafts); }

  // The same for text, with the least match; at most what the limits say.
  void set_text_quota(const DraftQuota& quota) { text_quota_ = quota; }
  const SchedulerLimits& limits() const { return limits_; }

  // The next step, or nothing when no sequence has a row to compute. With steps still uncollected
  // the plan counts on their tokens (kTokenFromSlot) and, where they hold drafts, on the most that
  // may be accepted. Steps must be executed in the order they were planned.
  std::optional<StepPlan> Plan();

  // Takes the output of the oldest planned step.
  std::vector<SequenceProgress> Complete(StepPlan plan, StepOutput output);

  // The sequences that a completed step said to be late and that no step in flight holds any more,
  // each once. They stay where they are, and no row of them is planned before TakeMask.
  std::vector<LateMask> TakeLate();
  // The mask behind the sequence's tokens can be made at once now, by `matcher`, which stands
  // there; that took so many steps of work. Nothing happens if the sequence has ended.
  void TakeMask(SequenceId id, std::shared_ptr<const grammar::Matcher> matcher, int64_t num_steps);

  // How long a step took; may be left out.
  void Observe(const StepShape& shape, double ms) { cost_.Observe(shape, ms); }
  const StepCost& cost() const { return cost_; }

  // Gives up the newest planned step, which was not submitted or whose output is lost: its
  // sequences end.
  void Abandon(const StepPlan& plan);

  SchedulerStats stats() const;
  void ClearPrefixCache() { prefix_cache_.Clear(); }
  const PrefixCache& prefix_cache() const { return prefix_cache_; }
  // See PrefixCache; must outlive the scheduler.
  void set_cache_observer(PrefixCacheObserver* observer) { prefix_cache_.set_observer(observer); }

  // Every page has exactly the holders that say they hold it, lengths agree: for tests and idle
  // loops.
  void CheckIntegrity() const;

 private:
  // What a step may still take.
  struct Budget {
    int32_t rows = 0;
    // Each of them holds a row of logits, so there are fewer. A decoding sequence's single row is
    // not counted: a step has at most max_num_seqs + max_scored_rows outputs.
    int32_t scored_rows = 0;
    double ms = kNoTimeLimit;
    // What the step has room for: an image may go beyond `rows`, but not beyond this.
    int32_t step_rows = 0;
  };
  // What a step verifies behind a sequence's next token: ids, or who gives them.
  struct Drafts {
    std::vector<int32_t> ids = {};
    std::optional<DraftQuota> quota = {};
  };
  static constexpr double kNoTimeLimit = std::numeric_limits<double>::infinity();
  using SequenceMap = std::map<SequenceId, std::unique_ptr<Sequence>>;

  // Planning, in the order of a step.
  void PlanDecodes(StepPlan& plan, int32_t& budget);
  void PlanPrompts(StepPlan& plan, Budget budget);
  // `only_last`: those whose prompt is done with it.
  void PlanChunks(const std::vector<Sequence*>& candidates, bool only_last, StepPlan& plan,
                  Budget& budget);
  void AdmitWaiting(StepPlan& plan, Budget& budget);
  template <typename Sequences>
  static void InsertInOrder(Sequences& sequences, Sequence& added) {
    const auto before = [](const Sequence* a, const Sequence* b) { return a->ComesBefore(*b); };
    sequences.insert(std::upper_bound(sequences.begin(), sequences.end(), &added, before), &added);
  }

  // Rows of the longest image that some prompt still has to compute in one step; 0: none has.
  int32_t LongestOpenImage() const;
  bool is_time_limited() const;
  // Whether prompts wait for the next step, so that this one shows what its decodes take. Never two
  // in a row.
  bool MustRunAlone(const StepShape& decodes) const;
  // These decodes and those that the prompts under way, and the ones that can be admitted, become.
  StepShape DecodesToCome(StepShape decodes) const;
  // What prompts may add to a step with these decodes,
  double PromptMs(const StepShape& decodes) const;
  // and to a step without any.
  double PromptsAloneMs() const;
  // Takes out of the budget what the oldest prompt must leave to shorter ones.
  Budget KeepForNewcomers(const std::vector<Sequence*>& prompts, Budget& budget) const;
  // The running ones that still have prompt to compute, in order of arrival.
  std::vector<Sequence*> RunningPrompts() const;
  // Whether one of those that wait from `first_behind` on is much shorter than the sequence.
  bool MayBePassed(const Sequence& sequence, size_t first_behind) const;
  // The leader's prompt is not in the cache yet.
  bool AwaitsLeader(const Sequence& sequence) const;

  bool CanTakeRows(const Sequence& sequence) const;
  // Rows of the next chunk: within the budget (so possibly none) and cut where the window before a
  // cache point would be lost without room for it.
  int32_t ChunkRows(const Sequence& sequence, const Budget& budget) const;
  void AddChunk(Sequence& sequence, int32_t num_rows, StepPlan& plan, Budget& budget);
  // Asks for the logprobs of the prompt tokens that follow the step's rows.
  void AddScores(Sequence& sequence, int32_t end, SequenceStep& step, StepBatch& batch) const;
  void AddToPlan(Sequence& sequence, int32_t num_rows, const Drafts& drafts, StepPlan& plan);
  // A sequence that needs no more than its next row.
  bool IsDecoding(const Sequence& sequence) const;
  // What to verify behind the next token of a decoding sequence.
  Drafts ChooseDrafts(const Sequence& sequence, int32_t max_drafts, int32_t max_text) const;
  // Drafts that cost no computing, as many as its steps may have of each source.
  DraftQuota TextQuota(const Sequence& sequence) const;
  // Text behind a chunk that ends the prompt, with the pages for it.
  Drafts ChooseDraftsBehindChunk(Sequence& sequence, int32_t num_rows, const Budget& budget);
  // Whether these drafts leave every running sequence a page to grow into.
  bool HasRoomForDrafts(const Sequence& sequence, int32_t num_rows, int32_t num_drafts) const;
  // Text that one of these sequences may draft in a step, of so many rows that drafts may take.
  int32_t MostText(std::span<Sequence* const> decoding, int32_t num_rows) const;
  // Every sequence of the step has its pages: what room is left goes to what would be lost
  // (SequencePages::KeepLeaving), then the tables are final. Before any page of the step is given
  // back, or a page would be written twice in it.
  void KeepLeavingPages(StepPlan& plan);
  // Steps run in order, so once a step is planned the books say what will be true when it has run:
  // its rows are cached (drafts perhaps), pages behind the window are free, its pages can be gone
  // on from. Not earlier: within the step those pages are still read, and what it writes is not
  // there yet.
  void CommitPlanned(const StepPlan& plan);
  // What of the first `length` tokens the prefix cache has not been offered: complete blocks, or
  // with what there is of the last ones.
  void OfferPages(Sequence& sequence, int32_t length, bool with_last);
  void MarkPromptPoints(Sequence& sequence);
  void MarkPoint(Sequence& sequence, int32_t length);
  // An entry of a step that was submitted before its sequence was known to be late.
  void CompleteStale(const StepPlan::Entry& entry, Sequence& sequence);
  // Once no step holds the late sequence: what follows its last token is computed again.
  void LeaveBatch(Sequence& sequence);

  // Pages for num_rows more, at the prefix cache's cost; false when that is not enough.
  bool Reserve(Sequence& sequence, int32_t num_rows, int32_t num_drafts = 0);
  // The same, preempting sequences younger than this one that are not in the plan yet.
  bool ReserveByPreempting(Sequence& sequence, int32_t num_rows);
  void EvictUntilFree(int num_pages);
  void Preempt(Sequence& sequence);
  void Finish(SequenceMap::iterator it, bool keep_prefix);
  // Its pages are given back, and it begins anew.
  void ReleasePages(Sequence& sequence);
  // Of all its tokens.
  const PrefixHashes& HashesOf(Sequence& sequence);
  // Starts a waiting sequence from the longest prefix there is; undone if it is not admitted.
  void Resume(Sequence& sequence, StepPlan& plan);
  void UndoResume(Sequence& sequence, size_t num_copies_before, StepPlan& plan);
  bool FitsBesideOthers(const Sequence& sequence, int32_t num_rows) const;
  void TakeSlot(Sequence& sequence);
  void BindSlot(Sequence& sequence, StepPlan& plan) const;
  void FreeSlot(Sequence& sequence);
  // Binds the slots that are still free to nothing.
  void ClearSlots(StepPlan& plan);
  // The sequence of a planned step's entry; null when it has ended. Usually still in its slot.
  Sequence* FindPlanned(const StepPlan::Entry& entry);

  const ModelPlan& plan_;
  const KvLayout& layout_;
  const SchedulerLimits limits_;
  const uint64_t hash_seed_;
  PagePool pool_;
  PrefixCache prefix_cache_;
  TestDrafts draft_source_;
  int num_drafts_;
  DraftQuota text_quota_;
  StepCost cost_;

  SequenceId last_id_ = 0;
  SequenceMap sequences_;
  // Both in order of priority, then of arrival.
  std::vector<Sequence*> running_;
  std::deque<Sequence*> waiting_;
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> slots_to_clear_;  // what they hold may be large, and nobody needs it
  std::vector<Sequence*> by_slot_;       // null: free
  std::vector<uint64_t> planned_in_;     // by slot: the step that last planned it
  uint64_t step_ = 0;
  // The last step without chunks.
  StepShape decodes_alone_;
  uint64_t step_alone_ = 0;
  // Sources of page copies, held until their step is done: of every step planned and not completed.
  std::deque<std::vector<PageIndex>> held_pages_;
  std::vector<SequenceId> late_;  // for TakeLate
  int num_late_ = 0;
  uint64_t num_preemptions_ = 0;
  uint64_t num_prompt_tokens_ = 0;
  uint64_t num_prefix_hit_tokens_ = 0;
  uint64_t num_hashed_tokens_ = 0;
};

}  // namespace lapidary
