#include "engine/check_kv.h"

#include <algorithm>
#include <set>

namespace lapidary {

Json KvChecker::Report(std::string problem, const StepBatch& batch, size_t sequence_idx,
                       int group_idx, int32_t block) const {
  const SequenceStep& sequence = batch.sequences[sequence_idx];
  const KvGroupPlan& group = plan_.kv_groups[group_idx];
  const std::vector<PageIndex>& pages = tables_.Of(sequence.slot, group_idx).pages;
  const auto first =
      std::find_if(pages.begin(), pages.end(), [](PageIndex page) { return page != kScratchPage; });
  Json report;
  report["problem"] = std::move(problem);
  report["sequence"] = sequence_idx;
  report["slot"] = sequence.slot;
  report["group"] = AttentionKindName(group.kind);
  report["layer"] = group.layers.empty() ? -1 : group.layers.front();
  report["block"] = block;
  report["num_cached"] = sequence.num_cached;
  report["num_uncertain"] = sequence.num_uncertain;
  report["num_rows"] = sequence.num_rows;
  report["first_block"] = first - pages.begin();
  report["pages"] = std::vector<PageIndex>(first, pages.end());
  return report;
}

std::optional<Json> KvChecker::CheckGroup(const StepBatch& batch, size_t sequence_idx,
                                          int group_idx, int num_pages, Writers& writers) const {
  const SequenceStep& sequence = batch.sequences[sequence_idx];
  const SlotTables::Table& table = tables_.Of(sequence.slot, group_idx);
  const int tokens = layout_.tokens_per_page[group_idx];
  const int window = plan_.kv_groups[group_idx].window;
  const auto fail = [&](std::string problem, int32_t block) {
    return Report(std::move(problem), batch, sequence_idx, group_idx, block);
  };
  const auto is_outside = [&](int32_t block) {
    return table.PageOf(block) < 0 || table.PageOf(block) >= num_pages;
  };
  // Blocks the rows read: cached keys in reach of the first row.
  const int32_t least_cached = sequence.num_cached - sequence.num_uncertain;
  for (int32_t block = FirstBlockRead(sequence, group_idx); block * tokens < sequence.num_cached;
       ++block) {
    if (is_outside(block)) return fail("page outside the pool", block);
    if (table.PageOf(block) == kScratchPage) return fail("a block that is read has no page", block);
  }
  // Blocks the rows write. The full group loses nothing.
  const int32_t end = sequence.num_cached + sequence.num_rows;
  for (int32_t block = least_cached / tokens; block * tokens < end; ++block) {
    if (is_outside(block)) return fail("page outside the pool", block);
    if (table.PageOf(block) == kScratchPage) {
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

std::optional<Json> KvChecker::CheckReads(const StepBatch& batch, size_t sequence_idx,
                                          int group_idx, const Writers& writers) const {
  const SequenceStep& sequence = batch.sequences[sequence_idx];
  const SlotTables::Table& table = tables_.Of(sequence.slot, group_idx);
  const int tokens = layout_.tokens_per_page[group_idx];
  for (int32_t block = FirstBlockRead(sequence, group_idx); block * tokens < sequence.num_cached;
       ++block) {
    const auto it = writers.find(table.PageOf(block));
    if (it == writers.end() || it->second == sequence_idx) continue;
    return Report("a page is read that another sequence writes", batch, sequence_idx, group_idx,
                  block);
  }
  return std::nullopt;
}

int32_t KvChecker::FirstBlockRead(const SequenceStep& sequence, int group_idx) const {
  return FirstBlockInReach(plan_, layout_, group_idx, sequence.num_cached - sequence.num_uncertain);
}

std::optional<Json> KvChecker::FindViolation(const StepBatch& batch, int num_pages) {
  for (const SlotBinding& binding : batch.bindings) tables_.Forget(binding.slot);
  for (const PageTableEntry& entry : batch.table_entries) {
    if (entry.slot < 0 || entry.block < 0 || entry.group_idx < 0 ||
        entry.group_idx >= kNumKvGroups) {
      return Json{{"problem", "a page table entry outside the tables"},
                  {"slot", entry.slot},
                  {"block", entry.block}};
    }
  }
  tables_.Set(batch.table_entries);
  Writers writers;
  std::set<int32_t> slots;
  int64_t num_rows = 0;
  int64_t num_scored = 0;
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const SequenceStep& sequence = batch.sequences[idx];
    num_rows += sequence.num_rows;
    num_scored += sequence.num_scored;
    if (sequence.slot < 0 || sequence.num_uncertain < 0 ||
        sequence.num_cached < sequence.num_uncertain || sequence.num_rows <= 0 ||
        sequence.num_outputs > sequence.num_rows ||
        sequence.num_scored + sequence.num_sampled() > sequence.num_outputs ||
        sequence.num_drafts >= sequence.num_rows || sequence.num_drafts > kMaxDrafts) {
      return Report("lengths do not fit together", batch, idx, kFullGroup, -1);
    }
    if (!slots.insert(sequence.slot).second) {
      return Report("two sequences in one slot", batch, idx, kFullGroup, -1);
    }
    for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
      if (plan_.kv_groups[group_idx].layers.empty()) continue;
      auto violation = CheckGroup(batch, idx, group_idx, num_pages, writers);
      if (violation) return violation;
    }
  }
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
      if (plan_.kv_groups[group_idx].layers.empty()) continue;
      auto violation = CheckReads(batch, idx, group_idx, writers);
      if (violation) return violation;
    }
  }
  if (num_rows != std::ssize(batch.token_ids) || num_scored != std::ssize(batch.scored_ids)) {
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
