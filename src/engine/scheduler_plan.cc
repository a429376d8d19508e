// What goes into a step: decodes first, then chunks of prompts, then newcomers, within rows and
// time.
#include <algorithm>

#include "base/check.h"
#include "engine/scheduler.h"

namespace lapidary {
namespace {

// Share of the row budget that decoding sequences cannot take from prompts.
constexpr int kPromptShare = 8;
// Share of the row budget that text may be drafted in: it is planned before anybody knows whether
// there is any, so few of these rows are run, and prompts could have had them.
constexpr int kTextShare = 4;
// Share of a step's prompt rows that the oldest prompt leaves to the others.
constexpr int kNewcomerShare = 4;
// Share of a step's time that decodes cannot take from prompts,
constexpr double kPromptTimeShare = 0.25;
// and rows that a chunk gets whatever they cost, or nothing would come of it.
constexpr int32_t kLeastChunkRows = 16;
// A step of prompts alone has time for this many rows after the longest of them: attention on the
// CPU reads the cached keys once for a block of rows, and with fewer rows its blocks are smaller.
constexpr int32_t kLeastRowsAlone = 128;
// Share of a step of prompts alone that may go into what every step costs, reading all weights. Of
// a model whose weights take long to read, steps are therefore longer than max_prompt_ms.
constexpr double kMostFixedShare = 0.1;
// What decodes take is seen when they run alone: once they have become so many times more, or read
// so many times as much, and every so many steps in any case.
constexpr double kMostDecodeGrowth = 1.5;
constexpr uint64_t kStepsBetweenAlone = 32;
// A shorter prefix (what templates begin all prompts with) is not worth copying pages for.
constexpr int32_t kLeastResumed = 16;

// Whether one is let past a prompt that comes before it. Those of about its length are not: both
// would be done later than one behind the other.
bool MayPass(const Sequence& sequence, const Sequence& before) {
  return 2 * int64_t{sequence.num_open_rows()} < before.num_open_rows();
}

}  // namespace

StepShape StepPlan::ShapeRun(const StepOutput& output) const {
  StepShape run = shape;
  for (size_t idx = 0; idx < entries.size(); ++idx) {
    if (!entries[idx].quota) continue;
    const int32_t num_planned = entries[idx].quota->assistant;
    run.AddDecode(output.sequences[idx].num_drafts - num_planned, entries[idx].num_cached);
  }
  return run;
}

bool Scheduler::CanTakeRows(const Sequence& sequence) const {
  if (sequence.num_open_rows() == 0 || sequence.awaits_mask) return false;
  // Once its last token may be on the way, no row beyond it is planned.
  return sequence.spec.max_new_tokens == 0 || sequence.num_rows_left() > 0;
}

int32_t Scheduler::ChunkRows(const Sequence& sequence, const Budget& budget) const {
  int32_t num_rows = std::min({sequence.num_open_rows(), budget.rows, budget.step_rows});
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
  // The sliding window before a cache point must still be there when the chunk is done.
  for (const int32_t point : sequence.spec.cache_points) {
    if (!limits_.prefix_caching) break;
    const int32_t end = sequence.num_planned + num_rows;
    if (point > sequence.num_planned && end - point > limits_.sliding_slack) {
      num_rows = point - sequence.num_planned;
      break;
    }
  }
  // Rows that see each other are computed together, be it beyond the budget.
  if (!sequence.spec.media || !plan_.images_see_both_ways) return num_rows;
  num_rows = RowsWithWholeImages(*sequence.spec.media, sequence.num_planned, num_rows);
  return num_rows <= budget.step_rows ? num_rows : 0;
}

int32_t Scheduler::LongestOpenImage() const {
  if (!plan_.images_see_both_ways) return 0;
  int32_t longest = 0;
  const auto look_at = [&](const Sequence& sequence) {
    if (!sequence.spec.media) return;
    for (const SoftTokenRun& run : *sequence.spec.media) {
      if (run.is_image && run.position >= sequence.num_planned) {
        longest = std::max(longest, run.length);
      }
    }
  };
  for (const Sequence* sequence : running_) look_at(*sequence);
  for (const Sequence* sequence : waiting_) look_at(*sequence);
  return longest;
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

void Scheduler::AddToPlan(Sequence& sequence, int32_t num_rows, const Drafts& drafts,
                          StepPlan& plan) {
  StepBatch& batch = plan.batch;
  SequenceStep step;
  step.slot = sequence.slot;
  step.num_cached = sequence.pages.max_length();
  step.num_uncertain = sequence.pages.num_uncertain();
  step.num_drafts = static_cast<int32_t>(drafts.ids.size());
  step.quota = drafts.quota;
  step.num_rows = num_rows + step.num_drafts;
  const int32_t end = sequence.num_planned + num_rows;
  const bool is_prompt_only = sequence.spec.max_new_tokens == 0;
  const bool ends_prompt = is_prompt_only && end == sequence.num_prompt_only_rows();
  step.samples = !is_prompt_only && end == sequence.known_len();
  step.num_outputs = step.num_sampled();
  AddScores(sequence, end, step, batch);
  if (sequence.must_bind_again) {
    BindSlot(sequence, plan);
    sequence.pages.ForgetTableSent();
    sequence.must_bind_again = false;
  }

  if (sequence.continues_slot) {
    CHECK_EQ(num_rows, 1);
    batch.token_ids.push_back(kTokenFromSlot);
  } else {
    CHECK_LE(end, static_cast<int32_t>(sequence.tokens.size()));
    batch.token_ids.insert(batch.token_ids.end(), sequence.tokens.begin() + sequence.num_planned,
                           sequence.tokens.begin() + end);
  }
  batch.token_ids.insert(batch.token_ids.end(), drafts.ids.begin(), drafts.ids.end());
  batch.sequences.push_back(step);
  plan.entries.push_back({sequence.id, sequence.slot, step.samples, ends_prompt, step.num_cached,
                          step.num_rows, step.num_drafts, step.quota});
  planned_in_[sequence.slot] = step_;
}

void Scheduler::KeepLeavingPages(StepPlan& plan) {
  const auto make_room = [&](EvictionKey key) { return prefix_cache_.MakeRoom(key); };
  const auto forget = [&](PageIndex page) { prefix_cache_.Drop(page); };
  for (const StepPlan::Entry& entry : plan.entries) {
    SequencePages& pages = by_slot_[entry.slot]->pages;
    if (limits_.prefix_caching && pages.has_leaving()) pages.KeepLeaving(make_room, forget);
    pages.TakeTableChanges(entry.slot, plan.batch.table_entries);
  }
}

void Scheduler::CommitPlanned(const StepPlan& plan) {
  for (size_t idx = 0; idx < plan.entries.size(); ++idx) {
    const SequenceStep& step = plan.batch.sequences[idx];
    Sequence& sequence = *by_slot_[step.slot];
    const int32_t num_sure_rows = step.num_rows - step.num_drafts;
    const bool is_prompt = sequence.num_planned < sequence.prompt_len();
    OfferPages(sequence, sequence.pages.length() + num_sure_rows, /*with_last=*/is_prompt);
    sequence.pages.Commit(step.num_rows, step.num_drafts);
    sequence.num_planned += num_sure_rows;
    if (step.samples) {
      ++sequence.num_pending;
      sequence.continues_slot = true;
    }
    if (is_prompt) MarkPromptPoints(sequence);
  }
}

bool Scheduler::IsDecoding(const Sequence& sequence) const {
  return sequence.slot >= 0 && CanTakeRows(sequence) && !sequence.is_prefilling();
}

int32_t Scheduler::MostText(std::span<Sequence* const> decoding, int32_t num_rows) const {
  const auto num_drafting = std::ranges::count_if(
      decoding, [&](const Sequence* other) { return TextQuota(*other).most() > 0; });
  return num_drafting > 0 ? std::max(num_rows / static_cast<int32_t>(num_drafting), 1) : 0;
}

DraftQuota Scheduler::TextQuota(const Sequence& sequence) const {
  const int32_t num_forced = std::min(text_quota_.forced, limits_.num_forced_drafts);
  const int32_t num_ngram = std::min(text_quota_.ngram, limits_.num_ngram_drafts);
  return {.forced = sequence.spec.grammar != nullptr ? num_forced : 0,
          .ngram = sequence.ngram_trust.Choose(num_ngram),
          .least_match = text_quota_.least_match};
}

Scheduler::Drafts Scheduler::ChooseDrafts(const Sequence& sequence, int32_t max_drafts,
                                          int32_t max_text) const {
  max_drafts = std::min({max_drafts, sequence.num_rows_left() - 1, kMaxDrafts});
  // A drafter goes on from what the target has computed in this slot.
  if (!sequence.continues_slot || max_drafts <= 0) return {};
  if (draft_source_) {
    Drafts drafts{.ids = draft_source_(sequence, max_drafts)};
    CHECK_LE(static_cast<int32_t>(drafts.ids.size()), max_drafts);
    return drafts;
  }
  DraftQuota quota = TextQuota(sequence);
  const int32_t most_text = std::min(max_text, max_drafts);
  quota.forced = std::min(quota.forced, most_text);
  quota.ngram = std::min(quota.ngram, most_text);
  quota.assistant = std::min(num_drafts_, max_drafts);
  // Most rows of text will not be needed: none of their pages is another's next one.
  if (!HasRoomForDrafts(sequence, 1 + quota.most(), quota.most())) quota.forced = quota.ngram = 0;
  Drafts drafts{.ids = std::vector<int32_t>(quota.most(), kTokenFromDrafter)};
  if (quota.forced > 0 || quota.ngram > 0) drafts.quota = quota;
  return drafts;
}

Scheduler::Drafts Scheduler::ChooseDraftsBehindChunk(Sequence& sequence, int32_t num_rows,
                                                     const Budget& budget) {
  const bool samples =
      sequence.spec.max_new_tokens > 0 && sequence.num_planned + num_rows == sequence.known_len();
  if (!samples) return {};
  const int32_t most = std::min({budget.rows - num_rows, budget.step_rows - num_rows,
                                 limits_.max_num_batched_tokens / kTextShare,
                                 sequence.num_rows_left() - num_rows, kMaxDrafts});
  DraftQuota quota = TextQuota(sequence);
  quota.forced = std::min(quota.forced, most);
  quota.ngram = std::min(quota.ngram, most);
  const int32_t num_drafts = quota.most();
  if (num_drafts <= 0 || !HasRoomForDrafts(sequence, num_rows + num_drafts, num_drafts) ||
      !Reserve(sequence, num_rows + num_drafts, num_drafts)) {
    return {};
  }
  return {.ids = std::vector<int32_t>(num_drafts, kTokenFromDrafter), .quota = quota};
}

bool Scheduler::HasRoomForDrafts(const Sequence& sequence, int32_t num_rows,
                                 int32_t num_drafts) const {
  return sequence.pages.PagesNeeded(num_rows, num_drafts) + static_cast<int>(running_.size()) <=
         pool_.num_free() + pool_.num_reclaimable();
}

void Scheduler::PlanDecodes(StepPlan& plan, int32_t& budget) {
  // Walks a copy: preemption takes sequences out of running_.
  const std::vector<Sequence*> candidates = running_;
  // Drafts get the rows that are left when every decoding sequence has one.
  int32_t num_undecided = static_cast<int32_t>(
      std::count_if(candidates.begin(), candidates.end(),
                    [&](const Sequence* sequence) { return IsDecoding(*sequence); }));
  const int32_t most_text = MostText(candidates, limits_.max_num_batched_tokens / kTextShare);
  for (Sequence* sequence : candidates) {
    if (budget == 0) return;
    if (!IsDecoding(*sequence)) continue;
    Drafts drafts = ChooseDrafts(*sequence, budget - num_undecided--, most_text);
    const int32_t num_drafts = static_cast<int32_t>(drafts.ids.size());
    // Nobody is preempted for drafts.
    if (num_drafts > 0 && !Reserve(*sequence, 1 + num_drafts, num_drafts)) drafts = {};
    if (drafts.ids.empty() && !ReserveByPreempting(*sequence, 1)) continue;
    AddToPlan(*sequence, 1, drafts, plan);
    budget -= 1 + static_cast<int32_t>(drafts.ids.size());
  }
}

void Scheduler::AddChunk(Sequence& sequence, int32_t num_rows, StepPlan& plan, Budget& budget) {
  budget.ms -= cost_.ChunkMilliseconds(num_rows, sequence.num_planned);
  const Drafts drafts = ChooseDraftsBehindChunk(sequence, num_rows, budget);
  AddToPlan(sequence, num_rows, drafts, plan);
  num_rows += static_cast<int32_t>(drafts.ids.size());
  budget.rows = std::max(budget.rows - num_rows, 0);
  budget.step_rows -= num_rows;
  budget.scored_rows = std::max(budget.scored_rows - plan.batch.sequences.back().num_scored, 0);
}

std::vector<Sequence*> Scheduler::RunningPrompts() const {
  std::vector<Sequence*> prompts;
  for (Sequence* sequence : running_) {
    if (sequence->is_prefilling() && CanTakeRows(*sequence)) prompts.push_back(sequence);
  }
  return prompts;
}

bool Scheduler::is_time_limited() const {
  return limits_.max_step_ms > 0.0 || limits_.max_step_growth > 0.0;
}

bool Scheduler::MustRunAlone(const StepShape& decodes) const {
  if (!is_time_limited() || decodes.num_rows() == 0) return false;
  const bool has_grown =
      decodes.num_decode_rows > kMostDecodeGrowth * decodes_alone_.num_decode_rows ||
      decodes.num_decode_keys > kMostDecodeGrowth * decodes_alone_.num_decode_keys;
  return has_grown || step_ - step_alone_ >= kStepsBetweenAlone;
}

StepShape Scheduler::DecodesToCome(StepShape decodes) const {
  for (const Sequence* sequence : running_) {
    if (sequence->is_prefilling()) decodes.AddDecode(1, sequence->known_len());
  }
  const size_t num_admissible = std::min(waiting_.size(), free_slots_.size());
  for (size_t idx = 0; idx < num_admissible; ++idx) {
    decodes.AddDecode(1, waiting_[idx]->known_len());
  }
  return decodes;
}

double Scheduler::PromptsAloneMs() const {
  if (limits_.max_prompt_ms <= 0.0) return kNoTimeLimit;
  int32_t num_before = 0;
  for (const Sequence* prompt : RunningPrompts()) {
    num_before = std::max(num_before, prompt->num_planned);
  }
  const double fixed_ms = std::max(cost_.DecodeMilliseconds({}), 0.0);
  const double step_ms = std::max(limits_.max_prompt_ms, fixed_ms / kMostFixedShare);
  return std::max(step_ms - fixed_ms, cost_.ChunkMilliseconds(kLeastRowsAlone, num_before));
}

double Scheduler::PromptMs(const StepShape& decodes) const {
  if (!cost_.is_known()) return kNoTimeLimit;
  if (decodes.num_rows() == 0) return PromptsAloneMs();
  if (!is_time_limited()) return kNoTimeLimit;
  const double pace_ms = cost_.DecodeMilliseconds(DecodesToCome(decodes));
  const double step_ms = std::max(limits_.max_step_ms, limits_.max_step_growth * pace_ms);
  return std::max(step_ms - cost_.DecodeMilliseconds(decodes), kPromptTimeShare * step_ms);
}

Scheduler::Budget Scheduler::KeepForNewcomers(const std::vector<Sequence*>& prompts,
                                              Budget& budget) const {
  if (prompts.empty()) return {0, 0, 0.0, 0};
  const int32_t most =
      std::max(budget.rows / kNewcomerShare, std::min(kLeastChunkRows, budget.rows / 2));
  int64_t wanted = 0;
  const auto want = [&](const Sequence& sequence) {
    if (MayPass(sequence, *prompts[0])) wanted += sequence.num_open_rows();
  };
  for (size_t idx = 1; idx < prompts.size() && wanted < most; ++idx) want(*prompts[idx]);
  const size_t num_admissible = std::min(waiting_.size(), free_slots_.size());
  for (size_t idx = 0; idx < num_admissible && wanted < most; ++idx) {
    const Sequence& sequence = *waiting_[idx];
    if (AwaitsLeader(sequence)) continue;
    // Nobody passes one that waits for room: what is kept for it would be lost.
    if (!FitsBesideOthers(sequence, sequence.num_open_rows())) break;
    want(sequence);
  }
  if (wanted == 0) return {0, 0, 0.0, 0};
  Budget kept{static_cast<int32_t>(std::min<int64_t>(wanted, most)), 0, 0.0, 0};
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
  PrefixCache::Resumable resumable;
  if (sequence.spec.media && plan_.images_see_both_ways) {
    // No prompt goes on inside an image whose rows see each other.
    resumable = [&media = *sequence.spec.media](int32_t position) {
      const SoftTokenRun* run = FindRun(media, position);
      return run != nullptr && run->is_image ? run->position : position;
    };
  }
  const PrefixCache::Match match = prefix_cache_.Find(HashesOf(sequence), resumable);
  if (match.length < kLeastResumed) return;
  const auto for_each_page = [&](const auto& visit) {
    for (const PageTable& table : match.tables) {
      for (const PageIndex page : table.pages) visit(page);
    }
  };
  for_each_page([&](PageIndex page) { pool_.Share(page); });
  const int num_copies = sequence.pages.PagesToResume(match.length);
  if (num_copies <= pool_.num_free() + pool_.num_reclaimable()) {
    EvictUntilFree(num_copies);
    std::vector<PageCopy> copies;
    CHECK(sequence.pages.Resume(match.length, match.tables, copies));
    for (const PageCopy& copy : copies) {
      pool_.Share(copy.from);
      held_pages_.back().push_back(copy.from);
      plan.batch.page_copies.push_back(copy);
    }
    sequence.num_planned = match.length;
    sequence.num_offered = {match.length, match.length};
    sequence.resumed_at = match.length;
    sequence.parts_from_other = match.parts;
  }
  for_each_page([&](PageIndex page) { pool_.Free(page); });
}

void Scheduler::UndoResume(Sequence& sequence, size_t num_copies_before, StepPlan& plan) {
  ReleasePages(sequence);
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

bool Scheduler::MayBePassed(const Sequence& sequence, size_t first_behind) const {
  // The sequence itself takes one of the slots.
  const size_t end = std::min(waiting_.size(), first_behind + free_slots_.size() - 1);
  for (size_t idx = first_behind; idx < end; ++idx) {
    if (MayPass(*waiting_[idx], sequence)) return true;
  }
  return false;
}

void Scheduler::AdmitWaiting(StepPlan& plan, Budget& budget) {
  for (size_t idx = 0; idx < waiting_.size() && !free_slots_.empty();) {
    if (budget.rows == 0 || budget.ms <= 0.0) return;
    Sequence& sequence = *waiting_[idx];
    if (sequence.num_pending > 0) return;  // Preempted with a token on the way: it comes first.
    // Others may pass one that waits for its leader, for a mask, or for a step with room for its
    // logprobs.
    if (sequence.awaits_mask || AwaitsLeader(sequence) || ChunkRows(sequence, budget) == 0) {
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
    // A prompt that this step will not see done leaves half of what there is to shorter ones.
    if (sequence.num_open_rows() > budget.rows && MayBePassed(sequence, idx + 1)) {
      allowed.rows = std::max(budget.rows / 2, 1);
      allowed.ms /= 2;
    }
    const int32_t num_rows = ChunkRows(sequence, allowed);
    if (num_rows == 0) {  // It goes on with an image that this step has no room for.
      UndoResume(sequence, num_copies, plan);
      ++idx;
      continue;
    }
    // Not before: a sequence that waits for room tries again at every step.
    if (sequence.resumed_at > 0) {
      prefix_cache_.UsePoint(sequence.prefix_hashes, sequence.resumed_at, sequence.parts_from_other,
                             sequence.id);
    }
    CHECK(Reserve(sequence, num_rows));
    if (sequence.num_preemptions == 0) {
      // Forced tokens may be cached too.
      sequence.num_cached_prompt_tokens = std::min(sequence.num_planned, sequence.prompt_len());
      num_prompt_tokens_ += sequence.prompt_len();
      num_prefix_hit_tokens_ += sequence.num_cached_prompt_tokens;
    }
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(idx));
    TakeSlot(sequence);
    BindSlot(sequence, plan);
    InsertInOrder(running_, sequence);
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
  const int32_t decode_limit =
      std::max(1, std::min(has_prompts ? budget - budget / kPromptShare : budget,
                           limits_.max_step_rows - LongestOpenImage()));
  int32_t decode_budget = decode_limit;
  PlanDecodes(plan, decode_budget);
  const int32_t decode_rows = decode_limit - decode_budget;
  const StepShape decodes = ShapeOf(plan.batch);
  if (!MustRunAlone(decodes)) {
    PlanPrompts(plan, {budget - decode_rows, limits_.max_scored_rows, PromptMs(decodes),
                       limits_.max_step_rows - decode_rows});
  }
  plan.shape = ShapeOf(plan.batch);
  if (plan.shape.num_chunk_rows == 0 && plan.shape.num_decode_rows > 0) {
    decodes_alone_ = plan.shape;
    step_alone_ = step_;
  }
  KeepLeavingPages(plan);
  CommitPlanned(plan);
  if (plan.entries.empty()) {
    CHECK(held_pages_.back().empty());
    held_pages_.pop_back();
    return std::nullopt;
  }
  ClearSlots(plan);
  return plan;
}

}  // namespace lapidary
