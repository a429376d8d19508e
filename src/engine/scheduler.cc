#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/generated_tokens.h"
#include "grammar/matcher.h"
#include "kv/kv_layout.h"

namespace lapidary {
namespace {

// Windows of so many tokens at the end of a prompt are worth keeping.
constexpr int32_t kPromptEndTokens = 512;

}  // namespace

Scheduler::Scheduler(const ModelPlan& plan, const KvLayout& layout, int num_pages,
                     const SchedulerLimits& limits, uint64_t hash_seed)
    : plan_(plan),
      layout_(layout),
      limits_(limits),
      hash_seed_(hash_seed),
      pool_(num_pages),
      prefix_cache_(plan, layout, pool_),
      num_drafts_(limits.num_drafts),
      text_quota_{.forced = limits.num_forced_drafts, .ngram = limits.num_ngram_drafts},
      by_slot_(limits.max_num_seqs, nullptr),
      planned_in_(limits.max_num_seqs, 0) {
  CHECK_GT(limits.max_num_seqs, 0);
  CHECK_GT(limits.max_num_batched_tokens, 0);
  CHECK_GE(limits.max_step_rows, limits.max_num_batched_tokens);
  CHECK_GT(limits.max_scored_rows, 0);
  for (int32_t slot = limits.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Scheduler::~Scheduler() {
  for (const auto& pages : held_pages_) {
    for (const PageIndex page : pages) pool_.Free(page);
  }
}

Status Scheduler::CheckFits(const SequenceSpec& spec, const ModelPlan& plan, const KvLayout& layout,
                            int num_pages, const SchedulerLimits& limits) {
  const int64_t max_len = limits.max_model_len > 0 ? limits.max_model_len : plan.max_context;
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
  if (PagesForSequence(plan, layout, total, limits.sliding_slack) > num_pages - 1) {
    return MakeError(
        "{} tokens need more KV pages than the {} there are; raise the memory for KV or "
        "ask for fewer tokens",
        total, num_pages - 1);
  }
  if (spec.media && plan.images_see_both_ways) {
    for (const SoftTokenRun& run : *spec.media) {
      // One row is always a decoding sequence's.
      if (!run.is_image || run.length < limits.max_step_rows) continue;
      return MakeError(
          "an image of {} tokens is computed in one step, and a step has room for {}: ask for "
          "fewer tokens per image, or raise --max-num-batched-tokens",
          run.length, limits.max_step_rows - 1);
    }
  }
  RETURN_IF_ERROR(CheckGenerated(spec, plan.vocab_size));
  RETURN_IF_ERROR(CheckIdentity(spec.identity, static_cast<int64_t>(spec.prompt.size())));
  for (const int32_t id : spec.prompt) {
    if (id < 0 || id >= plan.vocab_size) {
      return MakeError("token id {} is outside the vocabulary [0, {})", id, plan.vocab_size);
    }
  }
  return {};
}

Status Scheduler::Add(SequenceId id, SequenceSpec spec) {
  RETURN_IF_ERROR(CheckFits(spec, plan_, layout_, pool_.num_pages(), limits_));
  CHECK_GT(id, last_id_);
  last_id_ = id;
  // Nobody can go on inside an image whose rows see each other.
  if (spec.media && plan_.images_see_both_ways) {
    std::erase_if(spec.cache_points, [&](int32_t point) {
      const SoftTokenRun* run = FindRun(*spec.media, point);
      return run != nullptr && run->is_image && run->position < point;
    });
  }
  if (spec.media) {
    for (MediaDigest& medium : spec.identity.media) {
      const SoftTokenRun* run = FindRun(*spec.media, medium.position);
      if (run == nullptr) continue;
      medium.num_tokens = run->end() - medium.position;
      medium.is_whole = run->is_image && plan_.images_see_both_ways;
    }
  }
  auto sequence = std::make_unique<Sequence>(
      id, std::move(spec), SequencePages(plan_, layout_, pool_, limits_.sliding_slack), hash_seed_);
  // A prompt that asks the same of other things parts from this one near its end.
  const int32_t prompt_len = sequence->prompt_len();
  const int32_t window = plan_.kv_groups[kSlidingGroup].window;
  sequence->pages.set_end_zone(prompt_len - window - kPromptEndTokens, prompt_len);
  InsertInOrder(waiting_, *sequence);
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
    Preempt(victim);
    if (&victim == &sequence) return false;
  }
  return true;
}

void Scheduler::TakeSlot(Sequence& sequence) {
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  by_slot_[sequence.slot] = &sequence;
}

void Scheduler::BindSlot(Sequence& sequence, StepPlan& plan) const {
  const SequenceSpec& spec = sequence.spec;
  SlotBinding& binding = plan.batch.bindings.emplace_back();
  binding.slot = sequence.slot;
  binding.sampling = spec.sampling;
  binding.num_score_top = std::max(spec.num_prompt_logprobs, 0);
  binding.prompt_len = sequence.prompt_len();
  binding.max_len = sequence.prompt_len() + spec.max_new_tokens;
  binding.grammar = spec.grammar;
  binding.matcher = std::move(sequence.made_mask);
  binding.media = spec.media;
  binding.adapter = spec.adapter;
  if (spec.grammar || (spec.sampling && spec.sampling->has_penalties()) ||
      limits_.num_ngram_drafts > 0) {
    binding.tokens = sequence.tokens;
  }
}

void Scheduler::FreeSlot(Sequence& sequence) {
  by_slot_[sequence.slot] = nullptr;
  free_slots_.push_back(sequence.slot);
  if (sequence.spec.grammar || sequence.spec.media || sequence.spec.adapter) {
    slots_to_clear_.push_back(sequence.slot);
  }
  sequence.slot = -1;
  sequence.continues_slot = false;
  sequence.must_bind_again = false;
}

void Scheduler::ClearSlots(StepPlan& plan) {
  std::ranges::sort(slots_to_clear_);
  const auto repeated = std::ranges::unique(slots_to_clear_);
  slots_to_clear_.erase(repeated.begin(), repeated.end());
  for (const int32_t slot : slots_to_clear_) {
    if (by_slot_[slot] == nullptr) plan.batch.bindings.push_back({.slot = slot});
  }
  slots_to_clear_.clear();
}

Sequence* Scheduler::FindPlanned(const StepPlan::Entry& entry) {
  Sequence* in_slot = by_slot_[entry.slot];
  if (in_slot != nullptr && in_slot->id == entry.id) return in_slot;
  const auto it = sequences_.find(entry.id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

void Scheduler::ReleasePages(Sequence& sequence) {
  sequence.pages.Release();
  sequence.num_planned = 0;
  sequence.num_offered = {};
  sequence.resumed_at = 0;
}

void Scheduler::Preempt(Sequence& sequence) {
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  FreeSlot(sequence);
  OfferPages(sequence, sequence.pages.length(), /*with_last=*/true);
  ReleasePages(sequence);
  ++sequence.num_preemptions;
  ++num_preemptions_;
  InsertInOrder(waiting_, sequence);
}

void Scheduler::Finish(SequenceMap::iterator it, bool keep_prefix) {
  Sequence& sequence = *it->second;
  if (!keep_prefix && limits_.prefix_caching) prefix_cache_.DropWrittenBy(sequence.id);
  if (sequence.awaits_mask) --num_late_;
  if (sequence.slot >= 0) {
    if (keep_prefix) {
      // The last token's own entry may not have been computed.
      const int32_t length =
          std::min(static_cast<int32_t>(sequence.tokens.size()) - 1, sequence.pages.length());
      OfferPages(sequence, length, /*with_last=*/true);
      if (sequence.spec.cache_at_end) MarkPoint(sequence, length);
    }
    running_.erase(std::find(running_.begin(), running_.end(), &sequence));
    FreeSlot(sequence);
  } else {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
  }
  sequences_.erase(it);
}

void Scheduler::OfferPages(Sequence& sequence, int32_t length, bool with_last) {
  if (!limits_.prefix_caching) return;
  // Of what is cached the tokens may not be known yet.
  length = std::min(length, static_cast<int32_t>(sequence.tokens.size()));
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    if (plan_.kv_groups[group_idx].layers.empty()) continue;
    const int32_t tokens = layout_.tokens_per_page[group_idx];
    const int32_t end = with_last ? length : length / tokens * tokens;
    int32_t& num_offered = sequence.num_offered[group_idx];
    if (end <= num_offered) continue;
    const PrefixHashes& hashes = HashesOf(sequence);
    const PageTable& table = sequence.pages.table(group_idx);
    for (int32_t block = num_offered / tokens; block * tokens < end; ++block) {
      const PageIndex page = table.Contains(block) ? table.PageOf(block) : kScratchPage;
      if (page == kScratchPage) continue;
      prefix_cache_.Keep(group_idx, block, page, hashes, end, sequence.id, sequence.tokens);
    }
    num_offered = end;
  }
}

void Scheduler::MarkPoint(Sequence& sequence, int32_t length) {
  if (!limits_.prefix_caching || length <= 0) return;
  const PrefixHashes& hashes = HashesOf(sequence);
  prefix_cache_.MarkPoint(hashes, length);
  if (sequence.resumed_at > 0 && sequence.resumed_at < length &&
      prefix_cache_.IsPoint(hashes, length)) {
    prefix_cache_.LeavePoint(hashes, sequence.resumed_at);
  }
}

void Scheduler::MarkPromptPoints(Sequence& sequence) {
  const std::vector<int32_t>& points = sequence.spec.cache_points;
  while (sequence.num_cache_points_taken < points.size() &&
         points[sequence.num_cache_points_taken] <= sequence.pages.length()) {
    MarkPoint(sequence, points[sequence.num_cache_points_taken++]);
  }
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
    if (sequence.awaits_mask) {
      CompleteStale(entry, sequence);
      continue;
    }
    SequenceOutput& result = output.sequences[idx];
    if (!entry.samples && !entry.ends_prompt && result.scores.empty() && !result.error) continue;
    SequenceProgress update;
    update.id = entry.id;
    if (entry.ends_prompt) update.finish = FinishReason::kLength;
    // With tokens they are complete: drafts may stand behind the prompt's last row.
    if (!result.error || !result.tokens.empty()) {
      update.prompt_logprobs = std::move(result.scores);
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
    // Tokens before a failure count, and a stop among them is the end.
    if (result.error && (result.tokens.empty() || !update.finish)) {
      update.finish = FinishReason::kError;
      update.error = std::move(*result.error);
      update.blames_request = result.blames_request;
    }
    if (entry.samples) {
      --sequence.num_pending;
      sequence.ngram_trust.AddStep();
    }
    // Unless it was preempted since: then its pages are gone.
    if (entry.num_drafts > 0 && sequence.slot >= 0 && !result.error) {
      const int32_t num_accepted = std::max(static_cast<int32_t>(result.tokens.size()) - 1, 0);
      sequence.pages.Settle(num_accepted, entry.num_drafts - num_accepted);
      sequence.num_planned += num_accepted;
      if (!result.is_late) {  // Else it says nothing about the drafts.
        update.draft_source = result.draft_source;
        update.match_length = result.match_length;
        if (result.draft_source == DraftSource::kNgram) {
          sequence.ngram_trust.AddRound(num_accepted > 0);
        }
        update.num_drafts = entry.quota ? result.num_drafts : entry.num_drafts;
        update.num_accepted = num_accepted;
      }
    }
    if (result.is_late && !update.finish) {
      sequence.awaits_mask = true;
      ++num_late_;
      if (sequence.num_pending == 0) LeaveBatch(sequence);
    }
    if (update.finish) {
      Finish(sequences_.find(entry.id), /*keep_prefix=*/update.finish != FinishReason::kError);
    }
    progress.push_back(std::move(update));
  }
  return progress;
}

void Scheduler::CompleteStale(const StepPlan::Entry& entry, Sequence& sequence) {
  CHECK(entry.samples);
  --sequence.num_pending;
  // Unless it was preempted since: then its pages are gone.
  if (entry.num_drafts > 0 && sequence.slot >= 0) sequence.pages.Settle(0, entry.num_drafts);
  if (sequence.num_pending == 0) LeaveBatch(sequence);
}

void Scheduler::LeaveBatch(Sequence& sequence) {
  late_.push_back(sequence.id);
  if (sequence.slot < 0) return;  // Preempted: all of it is computed again.
  // The row behind the last token was computed, and one that stale steps put behind it.
  const int32_t num_taken_back =
      sequence.num_planned - (static_cast<int32_t>(sequence.tokens.size()) - 1);
  if (num_taken_back > limits_.sliding_slack) return Preempt(sequence);
  sequence.pages.TakeBack(num_taken_back);
  sequence.num_planned -= num_taken_back;
  sequence.continues_slot = false;
  sequence.must_bind_again = true;
}

std::vector<LateMask> Scheduler::TakeLate() {
  std::vector<LateMask> late;
  for (const SequenceId id : std::exchange(late_, {})) {
    const Sequence* sequence = Find(id);
    if (sequence == nullptr) continue;
    late.push_back(
        {.id = id,
         .grammar = sequence->spec.grammar,
         .outputs = {sequence->tokens.begin() + sequence->prompt_len(), sequence->tokens.end()},
         .max_steps = grammar::Work::kMaxMaskSteps - sequence->num_mask_steps});
  }
  return late;
}

void Scheduler::TakeMask(SequenceId id, std::shared_ptr<const grammar::Matcher> matcher,
                         int64_t num_steps) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& sequence = *it->second;
  CHECK(sequence.awaits_mask && sequence.num_pending == 0) << id;
  sequence.awaits_mask = false;
  --num_late_;
  sequence.num_mask_steps += num_steps;
  if (matcher == nullptr) return;
  CHECK_EQ(matcher->num_accepted(), sequence.num_outputs());
  sequence.made_mask = std::move(matcher);
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
  return {
      .num_running = static_cast<int>(running_.size()),
      .num_waiting = static_cast<int>(waiting_.size()),
      .num_late = num_late_,
      .num_free_pages = pool_.num_free(),
      .num_reclaimable_pages = pool_.num_reclaimable(),
      .num_cached_pages = {pool_.num_reclaimable(kSlidingGroup), pool_.num_reclaimable(kFullGroup)},
      .num_pages = pool_.num_pages() - 1,
      .num_pages_in_use = {pool_.num_in_use(kSlidingGroup), pool_.num_in_use(kFullGroup)},
      .num_preemptions = num_preemptions_,
      .num_prompt_tokens = num_prompt_tokens_,
      .num_prefix_hit_tokens = num_prefix_hit_tokens_,
      .num_evicted_pages = prefix_cache_.num_evicted(),
      .num_hashed_tokens = num_hashed_tokens_};
}

void Scheduler::CheckIntegrity() const {
  std::vector<int> holders(pool_.num_pages(), 0);
  int num_late = 0;
  for (const auto& [id, sequence] : sequences_) {
    for (const PageTable& table : sequence->pages.tables()) {
      for (const PageIndex page : table.pages) holders[page] += page != kScratchPage;
    }
    CHECK_EQ(sequence->pages.length(), sequence->num_planned);
    CHECK_LE(sequence->num_planned, sequence->known_len());
    CHECK(sequence->num_pending == 0 || sequence->num_pending <= 2) << sequence->num_pending;
    num_late += sequence->awaits_mask ? 1 : 0;
    const bool is_running =
        std::find(running_.begin(), running_.end(), sequence.get()) != running_.end();
    CHECK_EQ(is_running, sequence->slot >= 0);
    if (!is_running) CHECK_EQ(sequence->pages.length(), 0);
  }
  for (const auto& pages : held_pages_) {
    for (const PageIndex page : pages) ++holders[page];
  }
  prefix_cache_.CheckIntegrity();
  int num_used = 0;
  for (PageIndex page = 1; page < pool_.num_pages(); ++page) {
    CHECK_EQ(holders[page], pool_.num_sequences(page)) << "page " << page;
    CHECK(!pool_.is_overwritten(page)) << "page " << page;
    num_used += holders[page] > 0 || pool_.is_kept(page);
  }
  CHECK_EQ(num_used + pool_.num_free(), pool_.num_pages() - 1);
  CHECK_EQ(pool_.num_in_use(kSlidingGroup) + pool_.num_in_use(kFullGroup),
           num_used - pool_.num_reclaimable());
  CHECK_EQ(static_cast<int>(running_.size() + free_slots_.size()), limits_.max_num_seqs);
  CHECK_EQ(running_.size() + waiting_.size(), sequences_.size());
  CHECK_EQ(num_late, num_late_);
}

}  // namespace lapidary
