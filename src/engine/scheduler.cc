#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "kv/memory_plan.h"

namespace lapidary {
namespace {

// Share of the row budget that decoding sequences cannot take from prompts.
constexpr int kPromptShare = 8;

}  // namespace

Scheduler::Scheduler(const ModelPlan& plan, const KvLayout& layout, int num_pages,
                     const SchedulerLimits& limits, uint64_t hash_seed)
    : plan_(plan),
      layout_(layout),
      limits_(limits),
      pool_(num_pages),
      prefix_cache_(pool_, hash_seed),
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
  for (const int32_t id : spec.prompt) {
    if (id < 0 || id >= plan_.vocab_size) {
      return MakeError("token id {} is outside the vocabulary [0, {})", id, plan_.vocab_size);
    }
  }
  return {};
}

bool Scheduler::IsQueueFull() const {
  return static_cast<int>(waiting_.size()) >= limits_.max_queue;
}

Result<SequenceId> Scheduler::Add(SequenceSpec spec) {
  RETURN_IF_ERROR(CheckFits(spec));
  if (IsQueueFull()) return MakeError("{} requests are waiting already", waiting_.size());
  const SequenceId id = next_id_++;
  auto sequence = std::make_unique<Sequence>(
      id, std::move(spec), SequencePages(plan_, layout_, pool_, limits_.sliding_slack));
  waiting_.push_back(sequence.get());
  sequences_.emplace(id, std::move(sequence));
  return id;
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

bool Scheduler::Reserve(Sequence& sequence, int32_t num_rows) {
  const int needed = sequence.pages.PagesNeeded(num_rows);
  if (needed > pool_.num_free() + pool_.num_reclaimable()) return false;
  EvictUntilFree(needed);
  const std::array<int32_t, kNumKvGroups> ends = {sequence.pages.table(kSlidingGroup).end_block(),
                                                  sequence.pages.table(kFullGroup).end_block()};
  CHECK(sequence.pages.Reserve(num_rows));
  if (sequence.pages.table(kSlidingGroup).end_block() != ends[kSlidingGroup] ||
      sequence.pages.table(kFullGroup).end_block() != ends[kFullGroup]) {
    sequence.tables.reset();
  }
  return true;
}

bool Scheduler::ReserveByPreempting(Sequence& sequence, int32_t num_rows) {
  while (!Reserve(sequence, num_rows)) {
    // The youngest that this step has not planned yet: this one itself, or one that came later.
    const auto it = std::find_if(running_.rbegin(), running_.rend(), [&](const Sequence* other) {
      return planned_in_[other->slot] != step_ && !other->has_drafts_in_flight;
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

void Scheduler::FreeSlot(Sequence& sequence) {
  by_slot_[sequence.slot] = nullptr;
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
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
  sequence.tables.reset();
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
      prefix_cache_.Insert(std::span(sequence.tokens).first(length), std::move(snapshot),
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
  if (sequence.has_drafts_in_flight || sequence.num_open_rows() == 0) return false;
  if (sequence.spec.max_new_tokens == 0) return true;
  // Its last token is on the way: no row beyond it will be needed.
  return sequence.num_outputs() + sequence.num_pending < sequence.spec.max_new_tokens;
}

int32_t Scheduler::ChunkRows(const Sequence& sequence, const Budget& budget) const {
  int32_t num_rows = std::min(sequence.num_open_rows(), budget.rows);
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
    const auto prefix = std::span(sequence.tokens).first(point);
    PageTables snapshot;
    if (point > 0 && !prefix_cache_.Contains(prefix) &&
        sequence.pages.TakeSnapshot(point, snapshot)) {
      prefix_cache_.Insert(prefix, std::move(snapshot), sequence.resumed_from);
    }
  }
}

void Scheduler::AddScores(Sequence& sequence, int32_t end, SequenceStep& step) const {
  if (!sequence.wants_scores()) return;
  // The row at position p scores token p + 1.
  const int32_t first = std::max(sequence.num_planned + 1, sequence.num_scored);
  const int32_t last = std::min(end + 1, sequence.prompt_len());
  if (first >= last) return;
  CHECK_LE(end, sequence.prompt_len());  // The scored rows, and one sampled at most, are trailing.
  step.scored_ids.assign(sequence.tokens.begin() + first, sequence.tokens.begin() + last);
  step.num_score_top = sequence.spec.num_prompt_logprobs;
  step.num_outputs += last - first;
  sequence.num_scored = last;
}

void Scheduler::AddToPlan(Sequence& sequence, int32_t num_rows, std::span<const int32_t> drafts,
                          StepPlan& plan) {
  SequenceStep step;
  step.slot = sequence.slot;
  step.num_cached = sequence.num_planned;
  step.num_drafts = static_cast<int32_t>(drafts.size());
  step.num_rows = num_rows + step.num_drafts;
  const int32_t end = sequence.num_planned + num_rows;
  const bool is_prompt_only = sequence.spec.max_new_tokens == 0;
  const bool ends_prompt = is_prompt_only && end == sequence.num_prompt_only_rows();
  const bool samples = !is_prompt_only && end == sequence.known_len();
  if (samples) {
    step.num_outputs = step.num_drafts + 1;
    step.sampling = sequence.spec.sampling;
    step.history = sequence.history;
    step.sample_position = static_cast<uint64_t>(end - sequence.prompt_len());
  }
  AddScores(sequence, end, step);
  if (!sequence.tables) sequence.tables = std::make_shared<PageTables>(sequence.pages.tables());
  step.pages = sequence.tables;

  const int32_t num_known = static_cast<int32_t>(sequence.tokens.size());
  const int32_t num_from_host = std::min(end, num_known) - sequence.num_planned;
  plan.batch.token_ids.insert(plan.batch.token_ids.end(),
                              sequence.tokens.begin() + sequence.num_planned,
                              sequence.tokens.begin() + sequence.num_planned + num_from_host);
  if (end > num_known) {
    CHECK_EQ(num_rows, 1);  // Only the token right after an uncollected step is unknown.
    plan.batch.token_ids.push_back(kTokenFromSlot);
  }
  plan.batch.token_ids.insert(plan.batch.token_ids.end(), drafts.begin(), drafts.end());
  plan.batch.sequences.push_back(std::move(step));
  plan.entries.push_back(
      {sequence.id, sequence.slot, samples, ends_prompt, static_cast<int32_t>(drafts.size())});
  planned_in_[sequence.slot] = step_;

  sequence.has_drafts_in_flight = !drafts.empty();
}

void Scheduler::CommitPlanned(const StepPlan& plan) {
  for (size_t idx = 0; idx < plan.entries.size(); ++idx) {
    // With drafts, Complete() knows how many rows count.
    if (plan.entries[idx].num_drafts > 0) continue;
    Sequence& sequence = *by_slot_[plan.entries[idx].slot];
    const int32_t first_block = sequence.pages.table(kSlidingGroup).first_block;
    sequence.pages.Commit(plan.batch.sequences[idx].num_rows);
    if (sequence.pages.table(kSlidingGroup).first_block != first_block) sequence.tables.reset();
    sequence.num_planned += plan.batch.sequences[idx].num_rows;
    if (plan.entries[idx].samples) ++sequence.num_pending;
    TakePromptSnapshots(sequence);
  }
}

void Scheduler::PlanDecodes(StepPlan& plan, int32_t& budget) {
  // Walks a copy: preemption takes sequences out of running_.
  const std::vector<Sequence*> candidates = running_;
  for (Sequence* sequence : candidates) {
    if (budget == 0) return;
    if (sequence->slot < 0 || !CanTakeRows(*sequence) || sequence->is_prefilling()) continue;
    std::vector<int32_t> drafts;
    const int32_t left =
        sequence->spec.max_new_tokens - sequence->num_outputs() - sequence->num_pending;
    if (draft_source_ && sequence->num_pending == 0 && std::min(budget, left) > 1) {
      // Rejected drafts are taken back, which the slack behind the window must cover.
      const int32_t max_drafts = std::min({budget - 1, left - 1, limits_.sliding_slack});
      drafts = draft_source_(*sequence, max_drafts);
      CHECK_LE(static_cast<int32_t>(drafts.size()), max_drafts);
    }
    int32_t num_rows = 1 + static_cast<int32_t>(drafts.size());
    if (!drafts.empty() && !Reserve(*sequence, num_rows)) {
      drafts.clear();  // Nobody is preempted for drafts.
      num_rows = 1;
    }
    if (!ReserveByPreempting(*sequence, num_rows)) continue;
    AddToPlan(*sequence, 1, drafts, plan);
    budget -= num_rows;
  }
}

void Scheduler::AddChunk(Sequence& sequence, int32_t num_rows, StepPlan& plan, Budget& budget) {
  AddToPlan(sequence, num_rows, {}, plan);
  budget.rows -= num_rows;
  budget.scored_rows -= static_cast<int32_t>(plan.batch.sequences.back().scored_ids.size());
}

void Scheduler::PlanChunks(StepPlan& plan, Budget& budget) {
  const std::vector<Sequence*> candidates = running_;
  for (Sequence* sequence : candidates) {
    if (budget.rows == 0) return;
    if (sequence->slot < 0 || !CanTakeRows(*sequence) || !sequence->is_prefilling() ||
        planned_in_[sequence->slot] == step_) {
      continue;
    }
    const int32_t num_rows = ChunkRows(*sequence, budget);
    if (num_rows == 0 || !ReserveByPreempting(*sequence, num_rows)) continue;
    AddChunk(*sequence, num_rows, plan, budget);
  }
}

void Scheduler::Resume(Sequence& sequence, StepPlan& plan) {
  const PrefixCache::Match match = prefix_cache_.Find(sequence.tokens);
  if (match.length == 0) return;
  prefix_cache_.MarkUsed(match.hash);  // Now the last to be evicted.
  const int num_copies = sequence.pages.PagesToResume(match.length);
  if (num_copies > pool_.num_free() + pool_.num_reclaimable()) return;
  while (num_copies > pool_.num_free() && prefix_cache_.num_snapshots() > 1) {
    prefix_cache_.EvictOne();
  }
  if (num_copies > pool_.num_free()) return;

  std::vector<PageCopy> copies;
  CHECK(sequence.pages.Resume(match.length, *match.tables, copies));
  for (const PageCopy& copy : copies) {
    pool_.Share(copy.from);
    plan.held_pages.push_back(copy.from);
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
    pool_.Free(plan.held_pages.back());
    plan.held_pages.pop_back();
    plan.batch.page_copies.pop_back();
  }
}

bool Scheduler::FitsBesideOthers(const Sequence& sequence, int32_t num_rows) const {
  // Leave every running sequence a page to grow into, or one would be preempted right away.
  const int headroom = static_cast<int>(running_.size());
  return sequence.pages.PagesNeeded(num_rows) + headroom <=
         pool_.num_free() + pool_.num_reclaimable();
}

void Scheduler::AdmitWaiting(StepPlan& plan, Budget& budget) {
  while (!waiting_.empty() && budget.rows > 0 && !free_slots_.empty()) {
    Sequence& sequence = *waiting_.front();
    if (sequence.num_pending > 0) return;  // Preempted with a token on the way: it comes first.
    const Sequence* leader = Find(sequence.spec.leader);
    if (leader != nullptr && leader->num_planned + 1 < leader->prompt_len()) return;
    if (ChunkRows(sequence, budget) == 0) return;  // No more logprobs in this step.
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
    const int32_t num_rows = ChunkRows(sequence, budget);
    CHECK(Reserve(sequence, num_rows));
    if (sequence.num_preemptions == 0) {
      sequence.num_cached_prompt_tokens = sequence.num_planned;
      num_prompt_tokens_ += sequence.prompt_len();
      num_prefix_hit_tokens_ += sequence.num_planned;
    }
    waiting_.pop_front();
    sequence.slot = free_slots_.back();
    free_slots_.pop_back();
    by_slot_[sequence.slot] = &sequence;
    const auto by_arrival = [](const Sequence* a, const Sequence* b) { return a->id < b->id; };
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, by_arrival),
                    &sequence);
    AddChunk(sequence, num_rows, plan, budget);
  }
}

std::optional<StepPlan> Scheduler::Plan() {
  ++step_;
  StepPlan plan;
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
  Budget rest{budget - (decode_limit - decode_budget), limits_.max_scored_rows};
  PlanChunks(plan, rest);
  AdmitWaiting(plan, rest);
  CommitPlanned(plan);
  if (plan.entries.empty()) {
    CHECK(plan.held_pages.empty());
    return std::nullopt;
  }
  held_pages_.push_back(plan.held_pages);
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
    if (entry.num_drafts > 0) {
      sequence.has_drafts_in_flight = false;
      const int32_t num_rows = static_cast<int32_t>(update.tokens.size());
      sequence.pages.Commit(num_rows);
      sequence.tables.reset();
      sequence.num_planned += num_rows;
    } else if (entry.samples) {
      --sequence.num_pending;
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
          .num_prefix_hit_tokens = num_prefix_hit_tokens_};
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
