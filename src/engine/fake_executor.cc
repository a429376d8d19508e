#include "engine/fake_executor.h"

#include <algorithm>
#include <set>

#include "base/check.h"

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

FakeExecutor::Entry& FakeExecutor::EntryAt(const SequenceStep& sequence, int group_idx,
                                           int32_t position) {
  const int tokens = layout_.tokens_per_page[group_idx];
  const PageTable& table = (*sequence.pages)[group_idx];
  const int32_t block = position / tokens;
  CHECK(table.Contains(block)) << "group " << group_idx << " position " << position;
  const PageIndex page = table.PageOf(block);
  CHECK(page > kScratchPage && page < num_pages_) << page;
  return pages_[page][position % tokens];
}

PrefixHasher FakeExecutor::CheckCachedKeys(const SequenceStep& sequence) {
  PrefixHasher prefix(0);
  for (int32_t position = 0; position < sequence.num_cached; ++position) {
    const Entry& entry = EntryAt(sequence, kFullGroup, position);
    CHECK(entry.is_written && entry.before.hash() == prefix.hash()) << "position " << position;
    prefix = entry.after;
    const int window = plan_.kv_groups[kSlidingGroup].window;
    if (position >= sequence.num_cached - window + 1) {
      const Entry& sliding = EntryAt(sequence, kSlidingGroup, position);
      CHECK(sliding.is_written && sliding.after.hash() == prefix.hash()) << "position " << position;
    }
  }
  return prefix;
}

void FakeExecutor::RunSequence(const SequenceStep& sequence, std::span<const int32_t> ids,
                               Writes& writes, SequenceOutput& output) {
  PrefixHasher prefix = CheckCachedKeys(sequence);
  std::vector<PrefixHasher> after;
  for (int32_t row = 0; row < sequence.num_rows; ++row) {
    PrefixHasher next = prefix;
    next.Add(ids[row]);
    for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
      const PageTable& table = (*sequence.pages)[group_idx];
      const int32_t position = sequence.num_cached + row;
      const int32_t block = position / layout_.tokens_per_page[group_idx];
      if (!table.Contains(block) || table.PageOf(block) == kScratchPage) {
        CHECK_NE(group_idx, kFullGroup);  // Nothing of the full group may be dropped.
        continue;
      }
      writes.emplace_back(&EntryAt(sequence, group_idx, position), Entry{prefix, next, true});
    }
    prefix = next;
    after.push_back(prefix);
  }
  const int32_t first_output = sequence.num_rows - sequence.num_outputs;
  for (size_t idx = 0; idx < sequence.scored_ids.size(); ++idx) {
    const size_t row = static_cast<size_t>(first_output) + idx;
    if (row + 1 < ids.size()) CHECK_EQ(sequence.scored_ids[idx], ids[row + 1]);
    SampledToken score;
    score.id = sequence.scored_ids[idx];
    score.logprob = NextScore(after[row]);
    score.num_top = sequence.num_score_top;
    output.scores.push_back(score);
  }
  if (!sequence.sampling) return;
  CHECK_EQ(sequence.num_outputs, std::ssize(sequence.scored_ids) + sequence.num_drafts + 1);
  const int32_t first = sequence.num_rows - sequence.num_drafts - 1;
  for (int32_t row = first; row < sequence.num_rows; ++row) {
    SampledToken token;
    token.id = NextToken(after[row], plan_.vocab_size);
    output.tokens.push_back(token);
    last_token_[sequence.slot] = token.id;
    if (row + 1 < sequence.num_rows && ids[row + 1] != token.id) return;
  }
}

StepOutput FakeExecutor::Collect() {
  CHECK(!submitted_.empty());
  StepBatch batch = std::move(submitted_.front());
  submitted_.pop_front();
  for (const PageCopy& copy : batch.page_copies) pages_[copy.to] = pages_[copy.from];
  StepOutput output;
  output.sequences.resize(batch.sequences.size());
  Writes writes;
  size_t row = 0;
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const SequenceStep& sequence = batch.sequences[idx];
    if (batch.token_ids[row] == kTokenFromSlot) {
      batch.token_ids[row] = last_token_.at(sequence.slot);
    }
    RunSequence(sequence, std::span(batch.token_ids).subspan(row, sequence.num_rows), writes,
                output.sequences[idx]);
    row += sequence.num_rows;
  }
  CHECK_EQ(row, batch.token_ids.size());
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
