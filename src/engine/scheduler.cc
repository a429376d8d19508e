#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "kv/kv_layout.h"

namespace lapidary {
namespace {

// Share of the row budget that decoding sequences cannot take from prompts.
constexpr int kPromptShare = 8;
// Share of a step's prompt rows that the oldest prompt leaves to the others.
constexpr int kNewcomerShare = 4;
// Share of a step's time that decodes cannot take from prompts,
constexpr double kPromptTimeShare = 0.25;
// and rows that a chunk gets whatever they cost, or nothing would come of it.
constexpr int32_t kLeastChunkRows = 16;

}  // namespace

Scheduler::Scheduler(const ModelPlan& plan, const KvLayout& layout, int num_pages,
                     const SchedulerLimits& limits, uint64_t hash_seed)
    : plan_(plan),
      layout_(layout),
      limits_(limits),
      hash_seed_(hash_seed),
      pool_(num_pages),
      prefix_cache_(pool_),
      num_drafts_(limits.num_drafts),
      by_slot_(limits.max_num_seqs, nullptr),
      planned_in_(limits.max_num_seqs, 0) {
  CHECK_GT(limits.max_num_seqs, 0);
  CHECK_GT(limits.max_num_batched_tokens, 0);
  CHECK_GT(limits.max_scored_rows, 0);
  for (int32_t slot = limits.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Scheduler::~Scheduler() {
  for (const auto& pages : held_pages_) {
    for (const PageIndex page : pages) pool_.Free(page);
  }
}

Status Scheduler::CheckFits(const SequenceSpec& spec) const {
  const int64_t max_len = limits_.max_model_len > 0 ? limits_.max_model_len : plan_.max_context;
  const int64_t total = static_cast<int64_t>(spec.prompt.size()) + spec.max_new_tokens;
  if (spec.prompt.empty()) return MakeError("the prompt is empty");
  if (spec.max_new_tokens < 0) return MakeError("max_tokens must be at least 0");
  if (spec.num_prompt_logprobs < -1 || spec.num_prompt_logprobs > kMaxLogprobs) {
    return MakeError("prompt_logprobs must be between 0 and {}, got {}", kMaxLogprobs,
                     spec.num_prompt_logprobs);
  }
  if (total > max_len) {
    return MakeError("the context holds {} tokens; the prompt has {} and {} more were asked for",
                     max_len, spec.prompt.size(), spec.max_new_tokens);
  }
  if (PagesForSequence(plan_, layout_, total, limits_.sliding_slack) > pool_.num_pages() - 1) {
    return MakeError(
        "{} tokens need more KV pages than the {} there are; raise the memory for KV or "
        "ask for fewer tokens",
        total, pool_.num_pages() - 1);
  }
  RETURN_IF_ERROR(CheckIdentity(spec.identity, static_cast<int64_t>(spec.prompt.size())));
  for (const int32_t id : spec.prompt) {
    if (id < 0 || id >= plan_.vocab_size) {
      return MakeError("token id {} is outside the vocabulary [0, {})", id, plan_.vocab_size);
    }
  }
  return {};
}

Status Scheduler::Add(SequenceId id, SequenceSpec spec) {
  RETURN_IF_ERROR(CheckFits(spec));
  CHECK_GT(id, last_id_);
  last_id_ = id;
  auto sequence = std::make_unique<Sequence>(
      id, std::move(spec), SequencePages(plan_, layout_, pool_, limits_.sliding_slack), hash_seed_);
  waiting_.push_back(sequence.get());
  sequences_.emplace(id, std::move(sequence));
  return {};
}

const Sequence* Scheduler::Find(SequenceId id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

bool Scheduler::Cancel(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return false;
  Finish(it, /*keep_prefix=*/true);
  return true;
}

void Scheduler::EvictUntilFree(int num_pages) {
  while (pool_.num_free() < num_pages) CHECK(prefix_cache_.EvictOne());
}

bool Scheduler::Reserve(Sequence& sequence, int32_t num_rows, int32_t num_drafts) {
  const int needed = sequence.pages.PagesNeeded(num_rows, num_drafts);
  if (needed > pool_.num_free() + pool_.num_reclaimable()) return false;
  EvictUntilFree(needed);
  CHECK(sequence.pages.Reserve(num_rows, num_drafts));
  return true;
}

bool Scheduler::ReserveByPreempting(Sequence& sequence, int32_t num_rows) {
  while (!Reserve(sequence, num_rows)) {
    // The youngest that this step has not planned yet: this one itself, or one that came later.
    const auto it = std::find_if(running_.rbegin(), running_.rend(), [&](const Sequence* other) {
      return planned_in_[other->slot] != step_;
    });
    CHECK(it != running_.rend());
    Sequence& victim = **it;
    // Alone it fits, unless snapshots hold on to pages that it could use again.
    if (running_.size() == 1 && prefix_cache_.EvictOne()) continue;
    Preempt(victim);
    if (&victim == &sequence) return false;
  }
  return true;
}

void Scheduler::BindSlot(Sequence& sequence, StepPlan& plan) {
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  by_slot_[sequence.slot] = &sequence;
  const SequenceSpec& spec = sequence.spec;
  SlotBinding& binding = plan.batch.bindings.emplace_back();
  binding.slot = sequence.slot;
  binding.sampling = spec.sampling;
  binding.num_score_top = std::max(spec.num_prompt_logprobs, 0);
  binding.prompt_len = sequence.prompt_len();
  binding.max_len = sequence.prompt_len() + spec.max_new_tokens;
  binding.grammar = spec.grammar;
  if (spec.grammar || (spec.sampling && spec.sampling->has_penalties())) {
    binding.tokens = sequence.tokens;
  }
}

void Scheduler::FreeSlot(Sequence& sequence) {
  by_slot_[sequence.slot] = nullptr;
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  sequence.continues_slot = false;
}

Sequence* Scheduler::FindPlanned(const StepPlan::Entry& entry) {
  Sequence* in_slot = by_slot_[entry.slot];
  if (in_slot != nullptr && in_slot->id == entry.id) return in_slot;
  const auto it = sequences_.find(entry.id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

void Scheduler::Preempt(Sequence& sequence) {
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  FreeSlot(sequence);
  sequence.pages.Release();
  sequence.num_planned = 0;
  sequence.resumed_from.reset();
  ++sequence.num_preemptions;
  ++num_preemptions_;
  // Back among the waiting ones, where its arrival puts it.
  const auto position = std::find_if(waiting_.begin(), waiting_.end(), [&](const Sequence* other) {
    return other->id > sequence.id;
  });
  waiting_.insert(position, &sequence);
}

void Scheduler::Finish(SequenceMap::iterator it, bool keep_prefix) {
  Sequence& sequence = *it->second;
  if (sequence.slot >= 0) {
    // The last token's own entry may not have been computed.
    const int32_t length =
        std::min(static_cast<int32_t>(sequence.tokens.size()) - 1, sequence.pages.length());
    PageTables snapshot;
    if (keep_prefix && limits_.prefix_caching && sequence.spec.cache_at_end && length > 0 &&
        sequence.pages.TakeSnapshot(length, snapshot)) {
      prefix_cache_.Insert(HashesOf(sequence).Of(length), length, std::move(snapshot),
                           sequence.resumed_from);
    }
    running_.erase(std::find(running_.begin(), running_.end(), &sequence));
    FreeSlot(sequence);
  } else {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
  }
  sequences_.erase(it);
}

bool Scheduler::CanTakeRows(const Sequence& sequence) const {
  if (sequence.num_open_rows() == 0) return false;
  // Once its last token may be on the way, no row beyond it is planned.
  return sequence.spec.max_new_tokens == 0 || sequence.num_rows_left() > 0;
}

int32_t Scheduler::ChunkRows(const Sequence& sequence, const Budget& budget) const {
  int32_t num_rows = std::min(sequence.num_open_rows(), budget.rows);
  if (budget.ms <= 0.0) return 0;
  if (budget.ms < kNoTimeLimit) {
    const int32_t in_time = cost_.RowsWithin(budget.ms, sequence.num_planned, num_rows);
    num_rows = std::min(num_rows, std::max(in_time, kLeastChunkRows));
  }
  if (sequence.wants_scores()) {
    // The row before a token scores it; rows before that were scored ere a preemption.
    const int32_t num_unscored = std::max(sequence.num_scored - 1 - sequence.num_planned, 0);
    num_rows = std::min(num_rows, num_unscored + budget.scored_rows);
  }
  if (!limits_.prefix_caching) return num_rows;
  // The sliding window before a cache point must still be there when the chunk is done.
  for (const int32_t point : sequence.spec.cache_points) {
    const int32_t end = sequence.num_planned + num_rows;
    if (point > sequence.num_planned && end - point > limits_.sliding_slack) {
      num_rows = point - sequence.num_planned;
      break;
    }
  }
  return num_rows;
}

void Scheduler::TakePromptSnapshots(Sequence& sequence) {
  if (!limits_.prefix_caching) return;
  const std::vector<int32_t>& points = sequence.spec.cache_points;
  while (sequence.num_cache_points_taken < points.size() &&
         points[sequence.num_cache_points_taken] <= sequence.pages.length()) {
    const int32_t point = points[sequence.num_cache_points_taken++];
    if (point <= 0) continue;
    const PrefixHash& hash = HashesOf(sequence).Of(point);
    PageTables snapshot;
    if (!prefix_cache_.Contains(hash) && sequence.pages.TakeSnapshot(point, snapshot)) {
      prefix_cache_.Insert(hash, point, std::move(snapshot), sequence.resumed_from);
    }
  }
}

void Scheduler::AddScores(Sequence& sequence, int32_t end, SequenceStep& step,
                          StepBatch& batch) const {
  if (!sequence.wants_scores()) return;
  // The row at position p scores token p + 1.
  const int32_t first = std::max(sequence.num_planned + 1, sequence.num_scored);
  const int32_t last = std::min(end + 1, sequence.prompt_len());
  if (first >= last) return;
  CHECK_LE(end, sequence.prompt_len());  // The scored rows, and one sampled at most, are trailing.
  batch.scored_ids.insert(batch.scored_ids.end(), sequence.tokens.begin() + first,
                          sequence.tokens.begin() + last);
  step.num_scored = last - first;
  step.num_outputs += last - first;
  sequence.num_scored = last;
}

void Scheduler::AddToPlan(Sequence& sequence, int32_t num_rows, std::span<const int32_t> drafts,
                          StepPlan& plan) {
  StepBatch& batch = plan.batch;
  SequenceStep step;
  step.slot = sequence.slot;
  step.num_cached = sequence.pages.max_length();
  step.num_uncertain = sequence.pages.num_uncertain();
  step.num_drafts = static_cast<int32_t>(drafts.size());
  step.num_rows = num_rows + step.num_drafts;
  const int32_t end = sequence.num_planned + num_rows;
  const bool is_prompt_only = sequence.spec.max_new_tokens == 0;
  const bool ends_prompt = is_prompt_only && end == sequence.num_prompt_only_rows();
  step.samples = !is_prompt_only && end == sequence.known_len();
  step.num_outputs = step.num_sampled();
  AddScores(sequence, end, step, batch);
  sequence.pages.TakeTableChanges(sequence.slot, batch.table_entries);

  if (sequence.continues_slot) {
    CHECK_EQ(num_rows, 1);
    batch.token_ids.push_back(kTokenFromSlot);
  } else {
    CHECK_LE(end, static_cast<int32_t>(sequence.tokens.size()));
    batch.token_ids.insert(batch.token_ids.end(), sequence.tokens.begin() + sequence.num_planned,
                           sequence.tokens.begin() + end);
  }
  batch.token_ids.insert(batch.token_ids.end(), drafts.begin(), drafts.end());
  batch.sequences.push_back(step);
  plan.entries.push_back(
      {sequence.id, sequence.slot, step.samples, ends_prompt, step.num_rows, step.num_drafts});
  planned_in_[sequence.slot] = step_;
}

void Scheduler::CommitPlanned(const StepPlan& plan) {
  for (size_t idx = 0; idx < plan.entries.size(); ++idx) {
    const SequenceStep& step = plan.batch.sequences[idx];
    Sequence& sequence = *by_slot_[step.slot];
    sequence.pages.Commit(step.num_rows, step.num_drafts);
    sequence.num_planned += step.num_rows - step.num_drafts;
    if (step.samples) {
      ++sequence.num_pending;
      sequence.continues_slot = true;
    }
    TakePromptSnapshots(sequence);
  }
}

bool Scheduler::IsDecoding(const Sequence& sequence) const {
  return sequence.slot >= 0 && CanTakeRows(sequence) && !sequence.is_prefilling();
}

std::vector<int32_t> Scheduler::ChooseDrafts(const Sequence& sequence, int32_t max_drafts) const {
  max_drafts = std::min({max_drafts, sequence.num_rows_left() - 1, kMaxDrafts});
  // A drafter goes on from what the target has computed in this slot.
  if (!sequence.continues_slot || max_drafts <= 0) return {};
  if (!draft_source_) {
    return std::vector<int32_t>(std::min(num_drafts_, max_drafts), kTokenFromDrafter);
  }
  std::vector<int32_t> drafts = draft_source_(sequence, max_drafts);
  CHECK_LE(static_cast<int32_t>(drafts.size()), max_drafts);
  return drafts;
}

void Scheduler::PlanDecodes(StepPlan& plan, int32_t& budget) {
  // Walks a copy: preemption takes sequences out of running_.
  const std::vector<Sequence*> candidates = running_;
  // Drafts get the rows that are left when every decoding sequence has one.
  int32_t num_undecided = static_cast<int32_t>(
      std::count_if(candidates.begin(), candidates.end(),
                    [&](const Sequence* sequence) { return IsDecoding(*sequence); }));
  for (Sequence* sequence : candidates) {
    if (budget == 0) return;
    if (!IsDecoding(*sequence)) continue;
    std::vector<int32_t> drafts = ChooseDrafts(*sequence, budget - num_undecided--);
    const int32_t num_drafts = static_cast<int32_t>(drafts.size());
    // Nobody is preempted for drafts.
    if (num_drafts > 0 && !Reserve(*sequence, 1 + num_drafts, num_drafts)) drafts.clear();
    if (drafts.empty() && !ReserveByPreempting(*sequence, 1)) continue;
    AddToPlan(*sequence, 1, drafts, plan);
    budget -= 1 + static_cast<int32_t>(drafts.size());
  }
}

void Scheduler::AddChunk(Sequence& sequence, int32_t num_rows, StepPlan& plan, Budget& budget) {
  budget.ms -= cost_.ChunkMilliseconds(num_rows, sequence.num_planned);
  AddToPlan(sequence, num_rows, {}, plan);
  budget.rows -= num_rows;
  budget.scored_rows -= plan.batch.sequences.back().num_scored;
}

std::vector<Sequence*> Scheduler::RunningPrompts() const {
  std::vector<Sequence*> prompts;
  for (Sequence* sequence : running_) {
    if (sequence->is_prefilling() && CanTakeRows(*sequence)) prompts.push_back(sequence);
  }
  return prompts;
}

double Scheduler::PromptMs(const StepPlan& decodes) const {
  const bool is_limited = limits_.max_step_ms > 0.0 || limits_.max_step_growth > 0.0;
  if (!is_limited || decodes.entries.empty() || !cost_.is_known()) return kNoTimeLimit;
  const double decode_ms = cost_.Milliseconds(ShapeOf(decodes.batch));
  const double step_ms = std::max(limits_.max_step_ms, limits_.max_step_growth * decode_ms);
  return std::max(step_ms - decode_ms, kPromptTimeShare * step_ms);
}

Scheduler::Budget Scheduler::KeepForNewcomers(const std::vector<Sequence*>& prompts,
                                              Budget& budget) const {
  const int32_t most =
      std::max(budget.rows / kNewcomerShare, std::min(kLeastChunkRows, budget.rows / 2));
  int64_t wanted = 0;
  for (size_t idx = 1; idx < prompts.size() && wanted < most; ++idx) {
    wanted += prompts[idx]->num_open_rows();
  }
  const size_t num_admissible = std::min(waiting_.size(), free_slots_.size());
  for (size_t idx = 0; idx < num_admissible && wanted < most; ++idx) {
    const Sequence& sequence = *waiting_[idx];
    if (AwaitsLeader(sequence)) continue;
    // Nobody passes one that waits for room: what is kept for it would be lost.
    if (!FitsBesideOthers(sequence, sequence.num_open_rows())) break;
    wanted += sequence.num_open_rows();
  }
  if (prompts.empty() || wanted == 0) return {0, 0, 0.0};
  Budget kept{static_cast<int32_t>(std::min<int64_t>(wanted, most)), 0, 0.0};
  budget.rows -= kept.rows;
  if (budget.ms < kNoTimeLimit) {
    kept.ms = std::min(budget.ms / kNewcomerShare, cost_.ChunkMilliseconds(kept.rows, 0));
    budget.ms -= kept.ms;
  }
  return kept;
}

void Scheduler::PlanPrompts(StepPlan& plan, Budget budget) {
  std::vector<Sequence*> prompts = RunningPrompts();
  const Budget kept = KeepForNewcomers(prompts, budget);
  PlanChunks(prompts, /*only_last=*/false, plan, budget);
  budget.rows += kept.rows;
  budget.ms = std::max(budget.ms, 0.0) + kept.ms;
  std::stable_sort(prompts.begin(), prompts.end(), [](const Sequence* a, const Sequence* b) {
    return a->num_open_rows() < b->num_open_rows();
  });
  PlanChunks(prompts, /*only_last=*/true, plan, budget);
  AdmitWaiting(plan, budget);
  PlanChunks(prompts, /*only_last=*/false, plan, budget);
}

void Scheduler::PlanChunks(const std::vector<Sequence*>& candidates, bool only_last, StepPlan& plan,
                           Budget& budget) {
  for (Sequence* sequence : candidates) {
    if (budget.rows == 0) return;
    // One may have been preempted for another, or be in the plan.
    if (sequence->slot < 0 || planned_in_[sequence->slot] == step_) continue;
    const int32_t num_rows = ChunkRows(*sequence, budget);
    if (only_last && num_rows < sequence->num_open_rows()) continue;
    if (num_rows == 0 || !ReserveByPreempting(*sequence, num_rows)) continue;
    AddChunk(*sequence, num_rows, plan, budget);
  }
}

const PrefixHashes& Scheduler::HashesOf(Sequence& sequence) {
  num_hashed_tokens_ += sequence.prefix_hashes.Extend(sequence.tokens);
  return sequence.prefix_hashes;
}

void Scheduler::Resume(Sequence& sequence, StepPlan& plan) {
  const PrefixCache::Match match = prefix_cache_.Find(HashesOf(sequence));
  if (match.length == 0) return;
  const int num_copies = sequence.pages.PagesToResume(match.length);
  if (num_copies > pool_.num_free() + pool_.num_reclaimable()) return;
  while (num_copies > pool_.num_free()) {
    if (!prefix_cache_.EvictOne(/*kept=*/match.hash)) return;
  }

  std::vector<PageCopy> copies;
  CHECK(sequence.pages.Resume(match.length, *match.tables, copies));
  for (const PageCopy& copy : copies) {
    pool_.Share(copy.from);
    held_pages_.back().push_back(copy.from);
    plan.batch.page_copies.push_back(copy);
  }
  sequence.resumed_from = match.hash;
  sequence.num_planned = match.length;
}

void Scheduler::UndoResume(Sequence& sequence, size_t num_copies_before, StepPlan& plan) {
  sequence.pages.Release();
  sequence.num_planned = 0;
  sequence.resumed_from.reset();
  while (plan.batch.page_copies.size() > num_copies_before) {
    pool_.Free(held_pages_.back().back());
    held_pages_.back().pop_back();
    plan.batch.page_copies.pop_back();
  }
}

bool Scheduler::FitsBesideOthers(const Sequence& sequence, int32_t num_rows) const {
  // Leave every running sequence a page to grow into, or one would be preempted right away.
  const int headroom = static_cast<int>(running_.size());
  return sequence.pages.PagesNeeded(num_rows) + headroom <=
         pool_.num_free() + pool_.num_reclaimable();
}

bool Scheduler::AwaitsLeader(const Sequence& sequence) const {
  const Sequence* leader = Find(sequence.spec.leader);
  return leader != nullptr && leader->num_planned + 1 < leader->prompt_len();
}

void Scheduler::AdmitWaiting(StepPlan& plan, Budget& budget) {
  for (size_t idx = 0; idx < waiting_.size() && !free_slots_.empty();) {
    if (budget.rows == 0 || budget.ms <= 0.0) return;
    Sequence& sequence = *waiting_[idx];
    if (sequence.num_pending > 0) return;  // Preempted with a token on the way: it comes first.
    // Others may pass one that waits for its leader, or for a step with room for its logprobs.
    if (AwaitsLeader(sequence) || ChunkRows(sequence, budget) == 0) {
      ++idx;
      continue;
    }
    const size_t num_copies = plan.batch.page_copies.size();
    // The cache has no logits: what must be scored is computed. Nor must it leave no row at all.
    const bool may_resume = !sequence.wants_scores() && sequence.spec.max_new_tokens > 0;
    if (limits_.prefix_caching && may_resume) Resume(sequence, plan);
    // All it has to compute, not only the next chunk: one that comes back too early is the youngest
    // and would be preempted at its second chunk, again and again.
    if (!FitsBesideOthers(sequence, sequence.num_open_rows())) {
      // The pages that are copied from cost room too: alone, a sequence fits at least without them.
      UndoResume(sequence, num_copies, plan);
      if (!running_.empty() || !FitsBesideOthers(sequence, ChunkRows(sequence, budget))) return;
    }
    Budget allowed = budget;
    // A prompt that this step will not see done leaves half of what there is to those behind it.
    if (idx + 1 < waiting_.size() && sequence.num_open_rows() > budget.rows) {
      allowed.rows = std::max(budget.rows / 2, 1);
      allowed.ms /= 2;
    }
    const int32_t num_rows = ChunkRows(sequence, allowed);
    // Not before: a sequence that waits for room tries again at every step.
    if (sequence.resumed_from) prefix_cache_.MarkUsed(*sequence.resumed_from, sequence.id);
    CHECK(Reserve(sequence, num_rows));
    if (sequence.num_preemptions == 0) {
      sequence.num_cached_prompt_tokens = sequence.num_planned;
      num_prompt_tokens_ += sequence.prompt_len();
      num_prefix_hit_tokens_ += sequence.num_planned;
    }
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(idx));
    BindSlot(sequence, plan);
    const auto by_arrival = [](const Sequence* a, const Sequence* b) { return a->id < b->id; };
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, by_arrival),
                    &sequence);
    AddChunk(sequence, num_rows, plan, budget);
  }
}

std::optional<StepPlan> Scheduler::Plan() {
  ++step_;
  StepPlan plan;
  held_pages_.emplace_back();
  plan.entries.reserve(running_.size());
  plan.batch.sequences.reserve(running_.size());
  const int32_t budget = limits_.max_num_batched_tokens;
  const bool has_prompts =
      !waiting_.empty() || std::any_of(running_.begin(), running_.end(), [](const Sequence* other) {
        return other->is_prefilling();
      });
  const int32_t decode_limit = std::max(1, has_prompts ? budget - budget / kPromptShare : budget);
  int32_t decode_budget = decode_limit;
  PlanDecodes(plan, decode_budget);
  PlanPrompts(plan,
              {budget - (decode_limit - decode_budget), limits_.max_scored_rows, PromptMs(plan)});
  plan.shape = ShapeOf(plan.batch);
  CommitPlanned(plan);
  if (plan.entries.empty()) {
    CHECK(held_pages_.back().empty());
    held_pages_.pop_back();
    return std::nullopt;
  }
  return plan;
}

std::vector<SequenceProgress> Scheduler::Complete(StepPlan plan, StepOutput output) {
  CHECK_EQ(plan.entries.size(), output.sequences.size());
  CHECK(!held_pages_.empty());
  for (const PageIndex page : held_pages_.front()) pool_.Free(page);
  held_pages_.pop_front();

  std::vector<SequenceProgress> progress;
  progress.reserve(plan.entries.size());
  for (size_t idx = 0; idx < plan.entries.size(); ++idx) {
    const StepPlan::Entry& entry = plan.entries[idx];
    Sequence* planned = FindPlanned(entry);
    if (planned == nullptr) continue;  // A finished one's late row.
    Sequence& sequence = *planned;
    SequenceOutput& result = output.sequences[idx];
    if (!entry.samples && !entry.ends_prompt && result.scores.empty() && !result.error) continue;
    SequenceProgress update;
    update.id = entry.id;
    if (entry.ends_prompt) update.finish = FinishReason::kLength;
    if (!result.error) update.prompt_logprobs = std::move(result.scores);
    if (result.error) {
      update.finish = FinishReason::kError;
      update.error = *result.error;
    }
    for (const SampledToken& token : result.tokens) {
      sequence.tokens.push_back(token.id);
      update.tokens.push_back(token);
      const std::vector<int32_t>& stops = sequence.spec.stop_ids;
      if (std::find(stops.begin(), stops.end(), token.id) != stops.end()) {
        update.finish = FinishReason::kStop;
      } else if (sequence.num_outputs() >= sequence.spec.max_new_tokens) {
        update.finish = FinishReason::kLength;
      }
      if (update.finish) break;
    }
    if (entry.samples) --sequence.num_pending;
    // Unless it was preempted since: then its pages are gone.
    if (entry.num_drafts > 0 && sequence.slot >= 0 && !result.error) {
      const int32_t num_accepted = static_cast<int32_t>(result.tokens.size()) - 1;
      sequence.pages.Settle(num_accepted, entry.num_drafts - num_accepted);
      sequence.num_planned += num_accepted;
      update.num_drafts = entry.num_drafts;
      update.num_accepted = num_accepted;
    }
    if (update.finish) {
      Finish(sequences_.find(entry.id), /*keep_prefix=*/update.finish != FinishReason::kError);
    }
    progress.push_back(std::move(update));
  }
  return progress;
}

void Scheduler::Abandon(const StepPlan& plan) {
  CHECK(!held_pages_.empty());
  for (const PageIndex page : held_pages_.back()) pool_.Free(page);
  held_pages_.pop_back();
  for (const StepPlan::Entry& entry : plan.entries) {
    const auto it = sequences_.find(entry.id);
    if (it != sequences_.end()) Finish(it, /*keep_prefix=*/false);
  }
}

SchedulerStats Scheduler::stats() const {
  return {.num_running = static_cast<int>(running_.size()),
          .num_waiting = static_cast<int>(waiting_.size()),
          .num_free_pages = pool_.num_free(),
          .num_reclaimable_pages = pool_.num_reclaimable(),
          .num_pages = pool_.num_pages() - 1,
          .num_pages_in_use = {pool_.num_in_use(kSlidingGroup), pool_.num_in_use(kFullGroup)},
          .num_preemptions = num_preemptions_,
          .num_prompt_tokens = num_prompt_tokens_,
          .num_prefix_hit_tokens = num_prefix_hit_tokens_,
          .num_hashed_tokens = num_hashed_tokens_};
}

void Scheduler::CheckIntegrity() const {
  std::vector<int> holders(pool_.num_pages(), 0);
  for (const auto& [id, sequence] : sequences_) {
    for (const PageTable& table : sequence->pages.tables()) {
      for (const PageIndex page : table.pages) holders[page] += page != kScratchPage;
    }
    CHECK_EQ(sequence->pages.length(), sequence->num_planned);
    CHECK_LE(sequence->num_planned, sequence->known_len());
    CHECK(sequence->num_pending == 0 || sequence->num_pending <= 2) << sequence->num_pending;
    const bool is_running =
        std::find(running_.begin(), running_.end(), sequence.get()) != running_.end();
    CHECK_EQ(is_running, sequence->slot >= 0);
    if (!is_running) CHECK_EQ(sequence->pages.length(), 0);
  }
  for (const auto& pages : held_pages_) {
    for (const PageIndex page : pages) ++holders[page];
  }
  prefix_cache_.CountHolders(holders);
  int num_used = 0;
  for (PageIndex page = 1; page < pool_.num_pages(); ++page) {
    CHECK_EQ(holders[page], pool_.num_holders(page)) << "page " << page;
    num_used += holders[page] > 0;
  }
  CHECK_EQ(num_used + pool_.num_free(), pool_.num_pages() - 1);
  CHECK_EQ(pool_.num_in_use(kSlidingGroup) + pool_.num_in_use(kFullGroup),
           num_used - pool_.num_reclaimable());
  CHECK_EQ(static_cast<int>(running_.size() + free_slots_.size()), limits_.max_num_seqs);
  CHECK_EQ(running_.size() + waiting_.size(), sequences_.size());
}

}  // namespace lapidary
