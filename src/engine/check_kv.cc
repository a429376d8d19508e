#include "engine/check_kv.h"

#include <algorithm>
#include <map>
#include <set>

namespace lapidary {
namespace {

Json Report(std::string problem, const StepBatch& batch, size_t sequence_idx, const ModelPlan& plan,
            int group_idx, int32_t block) {
  const SequenceStep& sequence = batch.sequences[sequence_idx];
  const KvGroupPlan& group = plan.kv_groups[group_idx];
  Json report;
  report["problem"] = std::move(problem);
  report["sequence"] = sequence_idx;
  report["slot"] = sequence.slot;
  report["group"] = AttentionKindName(group.kind);
  report["layer"] = group.layers.empty() ? -1 : group.layers.front();
  report["block"] = block;
  report["num_cached"] = sequence.num_cached;
  report["num_rows"] = sequence.num_rows;
  if (sequence.pages) {
    report["first_block"] = (*sequence.pages)[group_idx].first_block;
    report["pages"] = (*sequence.pages)[group_idx].pages;
  }
  return report;
}

// Pages written so far in this step, by writer: two sequences must not write the same one.
using Writers = std::map<PageIndex, size_t>;

std::optional<Json> CheckGroup(const StepBatch& batch, size_t sequence_idx, const ModelPlan& plan,
                               const KvLayout& layout, int num_pages, int group_idx,
                               Writers& writers) {
  const SequenceStep& sequence = batch.sequences[sequence_idx];
  const PageTable& table = (*sequence.pages)[group_idx];
  const int tokens = layout.tokens_per_page[group_idx];
  const int window = plan.kv_groups[group_idx].window;
  const auto fail = [&](std::string problem, int32_t block) {
    return Report(std::move(problem), batch, sequence_idx, plan, group_idx, block);
  };
  for (size_t idx = 0; idx < table.pages.size(); ++idx) {
    if (table.pages[idx] < 0 || table.pages[idx] >= num_pages) {
      return fail("page outside the pool", table.first_block + static_cast<int32_t>(idx));
    }
  }
  // Blocks the rows read: cached keys in reach of the first row.
  const int32_t first_key = window == 0 ? 0 : std::max(0, sequence.num_cached - window + 1);
  for (int32_t block = first_key / tokens; block * tokens < sequence.num_cached; ++block) {
    if (!table.Contains(block) || table.PageOf(block) == kScratchPage) {
      return fail("a block that is read has no page", block);
    }
  }
  // Blocks the rows write. The full group loses nothing.
  const int32_t end = sequence.num_cached + sequence.num_rows;
  for (int32_t block = sequence.num_cached / tokens; block * tokens < end; ++block) {
    if (!table.Contains(block) || table.PageOf(block) == kScratchPage) {
      if (window == 0) return fail("a block that is written has no page", block);
      continue;
    }
    const auto [it, is_new] = writers.emplace(table.PageOf(block), sequence_idx);
    if (!is_new && it->second != sequence_idx) {
      return fail("a page is written by two sequences", block);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Json> FindKvViolation(const StepBatch& batch, const ModelPlan& plan,
                                    const KvLayout& layout, int num_pages) {
  Writers writers;
  std::set<int32_t> slots;
  int64_t num_rows = 0;
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const SequenceStep& sequence = batch.sequences[idx];
    num_rows += sequence.num_rows;
    const int64_t num_sampled = sequence.sampling ? sequence.num_drafts + 1 : 0;
    if (!sequence.pages || sequence.num_cached < 0 || sequence.num_rows <= 0 ||
        sequence.num_outputs > sequence.num_rows ||
        std::ssize(sequence.scored_ids) + num_sampled > sequence.num_outputs ||
        sequence.num_drafts >= sequence.num_rows) {
      return Report("lengths do not fit together", batch, idx, plan, kFullGroup, -1);
    }
    if (!slots.insert(sequence.slot).second) {
      return Report("two sequences in one slot", batch, idx, plan, kFullGroup, -1);
    }
    for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
      if (plan.kv_groups[group_idx].layers.empty()) continue;
      auto violation = CheckGroup(batch, idx, plan, layout, num_pages, group_idx, writers);
      if (violation) return violation;
    }
  }
  if (num_rows != static_cast<int64_t>(batch.token_ids.size())) {
    return Json{{"problem", "rows and token ids differ in number"},
                {"num_rows", num_rows},
                {"num_token_ids", batch.token_ids.size()}};
  }
  for (const PageCopy& copy : batch.page_copies) {
    if (copy.from <= kScratchPage || copy.from >= num_pages || copy.to <= kScratchPage ||
        copy.to >= num_pages) {
      return Json{
          {"problem", "a page copy outside the pool"}, {"from", copy.from}, {"to", copy.to}};
    }
  }
  return std::nullopt;
}

}  // namespace lapidary
