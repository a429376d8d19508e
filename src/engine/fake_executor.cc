#include "engine/fake_executor.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "executor/draft_rounds.h"
#include "sampling/accept.h"

namespace lapidary {
namespace {

int32_t NextToken(const PrefixHasher& prefix, int vocab_size) {
  return static_cast<int32_t>(prefix.hash().low % static_cast<uint64_t>(vocab_size));
}

float NextScore(const PrefixHasher& prefix) {
  return -static_cast<float>(prefix.hash().high % 10000) / 100.0f;
}

}  // namespace

FakeExecutor::FakeExecutor(const ModelPlan& plan, const KvLayout& layout, int num_pages)
    : plan_(plan), layout_(layout), num_pages_(num_pages), pages_(num_pages) {
  const int tokens = std::max(layout.tokens_per_page[0], layout.tokens_per_page[1]);
  for (std::vector<Entry>& page : pages_) page.resize(tokens);
}

void FakeExecutor::Submit(StepBatch batch) {
  CHECK_LT(submitted_.size(), 2u);
  submitted_.push_back(std::move(batch));
}

void FakeExecutor::BindSlots(const StepBatch& batch) {
  for (const SlotBinding& binding : batch.bindings) {
    constraints_.Reserve(binding.slot + 1);
    constraints_.Bind(binding);
    slots_[binding.slot] = {.is_bound = true,
                            .has_sampling = binding.sampling != nullptr,
                            .num_score_top = binding.num_score_top,
                            .max_len = binding.max_len};
    tables_.Forget(binding.slot);
  }
  tables_.Set(batch.table_entries);
}

FakeExecutor::Entry& FakeExecutor::EntryAt(const SequenceStep& sequence, int group_idx,
                                           int32_t position) {
  const int tokens = layout_.tokens_per_page[group_idx];
  const PageIndex page = tables_.Of(sequence.slot, group_idx).PageOf(position / tokens);
  CHECK(page > kScratchPage && page < num_pages_)
      << page << " in group " << group_idx << " at position " << position;
  return pages_[page][position % tokens];
}

PrefixHasher FakeExecutor::CheckCachedKeys(const SequenceStep& sequence, int32_t first_position) {
  PrefixHasher prefix(0);
  for (int32_t position = 0; position < first_position; ++position) {
    const Entry& entry = EntryAt(sequence, kFullGroup, position);
    CHECK(entry.is_written && entry.before.hash() == prefix.hash()) << "position " << position;
    prefix = entry.after;
    const int window = plan_.kv_groups[kSlidingGroup].window;
    if (position >= first_position - window + 1) {
      const Entry& sliding = EntryAt(sequence, kSlidingGroup, position);
      CHECK(sliding.is_written && sliding.after.hash() == prefix.hash()) << "position " << position;
    }
  }
  return prefix;
}

void FakeExecutor::ResolveIds(const SequenceStep& sequence, PrefixHasher prefix,
                              std::span<int32_t> ids) {
  if (ids[0] == kTokenFromSlot) ids[0] = slots_.at(sequence.slot).last_token;
  for (int32_t& id : ids) {
    if (id == kTokenFromDrafter) {
      const bool is_right = random_() % 4 != 0;
      id = is_right ? NextToken(prefix, plan_.vocab_size)
                    : static_cast<int32_t>(random_() % plan_.vocab_size);
    }
    CHECK(id >= 0 && id < plan_.vocab_size) << id;
    prefix.Add(id);
  }
}

int32_t FakeExecutor::NextAllowed(const PrefixHasher& prefix, const RowMasks& masks, int32_t row) {
  std::vector<int32_t> allowed;
  const std::span<const uint32_t> mask = masks.Mask(row);
  for (int32_t id = 0; id < 32 * masks.num_words; ++id) {
    if ((mask[id / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
  }
  return allowed[NextToken(prefix, static_cast<int>(allowed.size()))];
}

void FakeExecutor::Fail(Slot& slot, SequenceOutput& output) {
  num_failures_ += slot.has_failed ? 0 : 1;
  slot.has_failed = true;
  output.error = "a failure that the test asked for";
}

void FakeExecutor::BeLate(Slot& slot, SequenceOutput& output) {
  ++num_late_;
  slot.has_failed = true;
  output.is_late = true;
}

void FakeExecutor::DraftText(std::span<int32_t> ids, SequenceStep& sequence,
                             SequenceOutput& output) {
  if (!sequence.quota) return;
  CHECK_EQ(sequence.quota->most(), sequence.num_drafts);
  std::vector<int32_t> drafts;
  if (constraints_.IsActive(sequence.slot)) {
    grammar::Work work(kMaskStepsPerThread);
    drafts = constraints_.LikelyTokens(sequence.slot, sequence.quota->forced, work);
  }
  output.draft_source = DraftSource::kForced;
  // As if there were such text now and then, some of it right.
  const auto make_up = [&](DraftSource source, int32_t most) {
    if (!drafts.empty() || random_() % 2 == 0) return;
    drafts.resize(random_() % (most + 1), kTokenFromDrafter);
    output.draft_source = source;
  };
  make_up(DraftSource::kForced, sequence.quota->forced);
  make_up(DraftSource::kNgram, sequence.quota->ngram);
  if (drafts.empty()) {
    output.draft_source = DraftSource::kAssistant;
    drafts.resize(sequence.quota->assistant, kTokenFromDrafter);
  }
  std::ranges::copy(drafts, ids.end() - sequence.num_drafts);
  output.num_drafts = static_cast<int32_t>(drafts.size());
  ShortenRound(output.num_drafts, sequence);
}

void FakeExecutor::RunSequence(SequenceStep sequence, std::span<int32_t> ids,
                               std::span<const int32_t> scored_ids, Writes& writes,
                               SequenceOutput& output) {
  Slot& slot = slots_.at(sequence.slot);
  CHECK(slot.is_bound);
  if (slot.has_failed) {
    // Two steps are in flight at most, so one was planned without knowing.
    CHECK_EQ(slot.num_steps_since++, 0);
    Fail(slot, output);
    if (ids[0] == kTokenFromSlot) return;
  }
  const int32_t first_position = FirstPosition(ids[0], sequence.num_cached, slot.length);
  CHECK_LE(first_position, sequence.num_cached);
  CHECK_GE(first_position, sequence.num_cached - sequence.num_uncertain);
  CHECK_LE(sequence.num_drafts, kMaxDrafts);
  if (slot.max_len > 0) CHECK_LT(sequence.num_cached + sequence.num_rows, slot.max_len + 1);
  DraftText(ids, sequence, output);
  ids = ids.first(sequence.num_rows);
  PrefixHasher prefix = CheckCachedKeys(sequence, first_position);
  ResolveIds(sequence, prefix, ids);
  std::vector<PrefixHasher> after;
  for (int32_t row = 0; row < sequence.num_rows; ++row) {
    PrefixHasher next = prefix;
    next.Add(ids[row]);
    for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
      const int32_t position = first_position + row;
      const int32_t block = position / layout_.tokens_per_page[group_idx];
      if (tables_.Of(sequence.slot, group_idx).PageOf(block) == kScratchPage) {
        CHECK_NE(group_idx, kFullGroup);  // Nothing of the full group may be dropped.
        continue;
      }
      writes.emplace_back(&EntryAt(sequence, group_idx, position), Entry{prefix, next, true});
    }
    prefix = next;
    after.push_back(prefix);
  }
  if (slot.has_failed) return;
  const int32_t first_output = sequence.num_rows - sequence.num_outputs;
  for (int32_t idx = 0; idx < sequence.num_scored; ++idx) {
    const size_t row = static_cast<size_t>(first_output + idx);
    if (row + 1 < ids.size()) CHECK_EQ(scored_ids[idx], ids[row + 1]);
    SampledToken score;
    score.id = scored_ids[idx];
    score.logprob = NextScore(after[row]);
    score.num_top = slot.num_score_top;
    output.scores.push_back(score);
    if (FailsNow()) return Fail(slot, output);
  }
  slot.length = LengthAfter(first_position, sequence.num_rows, 0, 0);
  if (!sequence.samples) return;
  CHECK(slot.has_sampling);
  CHECK_EQ(sequence.num_outputs, sequence.num_scored + sequence.num_sampled());
  const int32_t first = sequence.num_rows - sequence.num_sampled();
  RowMasks masks;
  const bool is_constrained = constraints_.IsActive(sequence.slot);
  if (is_constrained) {
    grammar::Work work(mask_steps_);
    constraints_.MakeMasks(sequence.slot, ids.last(sequence.num_drafts), work, &masks);
    CHECK(masks.num_made == sequence.num_sampled() || masks.is_late()) << masks.error.message;
    if (masks.num_made == 0) return BeLate(slot, output);
  }
  const auto token_of = [&](int32_t row) {
    return is_constrained ? NextAllowed(after[first + row], masks, row)
                          : NextToken(after[first + row], plan_.vocab_size);
  };
  const int32_t num_made = is_constrained ? masks.num_made : sequence.num_sampled();
  // Behind the last mask there is a row that none was made for, or the last draft.
  const int32_t num_accepted =
      NumAcceptedRows(std::min(sequence.num_drafts, num_made - 1), token_of,
                      [&](int32_t row) { return ids[first + row + 1]; });
  for (int32_t row = 0; row < num_accepted; ++row) {
    if (FailsNow()) return Fail(slot, output);
    if (IsLateNow()) return BeLate(slot, output);
    const int32_t id = token_of(row);
    output.tokens.emplace_back().id = id;
    if (!constraints_.IsActive(sequence.slot)) continue;
    grammar::Work work(mask_steps_);
    CHECK(constraints_.Advance(sequence.slot, id, work).ok());
  }
  const int32_t last_draft = first + num_accepted;
  if (num_accepted == num_made && num_made <= sequence.num_drafts &&
      ids[last_draft] == output.tokens.back().id && constraints_.IsActive(sequence.slot)) {
    return BeLate(slot, output);  // The draft is accepted; what follows it has no mask.
  }
  slot.last_token = output.tokens.back().id;
  slot.length =
      LengthAfter(first_position, sequence.num_rows, sequence.num_sampled(), num_accepted);
}

StepOutput FakeExecutor::Collect() {
  CHECK(!submitted_.empty());
  StepBatch batch = std::move(submitted_.front());
  submitted_.pop_front();
  BindSlots(batch);
  for (const PageCopy& copy : batch.page_copies) pages_[copy.to] = pages_[copy.from];
  StepOutput output;
  output.sequences.resize(batch.sequences.size());
  Writes writes;
  size_t row = 0;
  size_t score = 0;
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const SequenceStep& sequence = batch.sequences[idx];
    RunSequence(sequence, std::span(batch.token_ids).subspan(row, sequence.num_rows),
                std::span(batch.scored_ids).subspan(score, sequence.num_scored), writes,
                output.sequences[idx]);
    row += sequence.num_rows;
    score += sequence.num_scored;
  }
  CHECK_EQ(row, batch.token_ids.size());
  CHECK_EQ(score, batch.scored_ids.size());
  // All reads came first. Nobody writes where another writes.
  std::set<const Entry*> written;
  for (const auto& [target, entry] : writes) {
    CHECK(written.insert(target).second);
    *target = entry;
  }
  return output;
}

std::vector<float> FakeExecutor::Scores(std::span<const int32_t> prompt) {
  PrefixHasher prefix(0);
  std::vector<float> scores;
  for (size_t idx = 0; idx + 1 < prompt.size(); ++idx) {
    prefix.Add(prompt[idx]);
    scores.push_back(NextScore(prefix));
  }
  return scores;
}

std::vector<int32_t> FakeExecutor::Continuation(std::span<const int32_t> prompt, int count,
                                                int vocab_size) {
  PrefixHasher prefix(0);
  for (const int32_t id : prompt) prefix.Add(id);
  std::vector<int32_t> tokens;
  for (int idx = 0; idx < count; ++idx) {
    tokens.push_back(NextToken(prefix, vocab_size));
    prefix.Add(tokens.back());
  }
  return tokens;
}

}  // namespace lapidary
