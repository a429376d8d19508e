#include "tests/step_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <tuple>

#include "base/check.h"

namespace lapidary {

std::vector<int32_t> RandomTokens(const ModelPlan& plan, int seed, int count) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % plan.vocab_size);
  return ids;
}

void AddStep(SequencePages& pages, std::span<const int32_t> ids, int num_outputs, int32_t slot,
             StepBatch& batch) {
  SequenceStep step;
  step.slot = slot;
  step.num_rows = static_cast<int32_t>(ids.size());
  const bool is_bound =
      std::any_of(batch.bindings.begin(), batch.bindings.end(),
                  [&](const SlotBinding& binding) { return binding.slot == slot; });
  if (pages.max_length() == 0 && !is_bound) batch.bindings.push_back({.slot = slot});
  CHECK(pages.Reserve(step.num_rows));
  step.num_cached = pages.max_length();
  step.num_uncertain = pages.num_uncertain();
  step.num_outputs = num_outputs;
  pages.TakeTableChanges(slot, batch.table_entries);
  batch.token_ids.insert(batch.token_ids.end(), ids.begin(), ids.end());
  batch.sequences.push_back(step);
}

namespace {

// Adds `ids` to a sequence, cut into the given chunk sizes.
Logits AppendInChunks(Executor& executor, SequencePages& pages, std::span<const int32_t> ids,
                      const std::vector<int>& chunks, int32_t slot = 0) {
  Logits all;
  for (size_t done = 0, idx = 0; done < ids.size(); ++idx) {
    const size_t count = std::min<size_t>(chunks[idx % chunks.size()], ids.size() - done);
    StepBatch batch;
    batch.return_logits = true;
    AddStep(pages, ids.subspan(done, count), static_cast<int>(count), slot, batch);
    const StepOutput output = executor.Run(std::move(batch));
    pages.Commit(static_cast<int32_t>(count));
    all.insert(all.end(), output.logits.begin(), output.logits.end());
    done += count;
  }
  return all;
}

}  // namespace

Logits RunInChunks(Executor& executor, std::span<const int32_t> ids,
                   const std::vector<int>& chunks) {
  PagePool pool(executor.num_pages());
  SequencePages pages(executor.plan(), executor.kv_layout(), pool);
  return AppendInChunks(executor, pages, ids, chunks);
}

Logits RunAtPosition(Executor& executor, std::span<const int32_t> past, int32_t position,
                     std::span<const int32_t> ids, const std::vector<int>& chunks) {
  PagePool pool(executor.num_pages());
  SequencePages computed(executor.plan(), executor.kv_layout(), pool);
  AppendInChunks(executor, computed, past, {16});
  PageTables repeated;
  for (int group = 0; group < kNumKvGroups; ++group) {
    const int tokens = executor.kv_layout().tokens_per_page[group];
    CHECK(position % tokens == 0 && past.size() % tokens == 0) << tokens << " tokens a page";
    const PageTable& table = computed.table(group);
    // The full group begins anew at every multiple of the past's length, the window is its end.
    const int32_t num_blocks = position / tokens;
    const int32_t shift = num_blocks - table.end_block();
    const bool is_full = executor.plan().kv_groups[group].window == 0;
    repeated[group].first_block = is_full ? 0 : table.first_block + shift;
    for (int32_t block = repeated[group].first_block; block < num_blocks; ++block) {
      repeated[group].pages.push_back(
          is_full ? table.pages[static_cast<size_t>(block) % table.pages.size()]
                  : table.PageOf(block - shift));
    }
  }
  SequencePages pages(executor.plan(), executor.kv_layout(), pool);
  std::vector<PageCopy> copies;
  CHECK(pages.Resume(position, repeated, copies) && copies.empty());
  return AppendInChunks(executor, pages, ids, chunks, /*slot=*/1);
}

Logits RunWithUnneededRows(Executor& executor, std::span<const int32_t> ids) {
  CHECK_GE(ids.size(), 70u);
  PagePool pool(executor.num_pages());
  SequencePages pages(executor.plan(), executor.kv_layout(), pool);
  Logits all;
  for (const auto& [begin, count, wanted] :
       std::vector<std::tuple<int, int, bool>>{{0, 30, true}, {30, 25, false}, {55, 15, true}}) {
    StepBatch batch;
    batch.return_logits = true;
    AddStep(pages, ids.subspan(begin, count), wanted ? 1 : 0, /*slot=*/0, batch);
    const StepOutput output = executor.Run(std::move(batch));
    pages.Commit(count);
    all.insert(all.end(), output.logits.begin(), output.logits.end());
  }
  return all;
}

void ExpectSameBits(const ModelPlan& plan, const Logits& expected, const Logits& actual,
                    const std::string& mode) {
  ASSERT_EQ(expected.size(), actual.size()) << mode;
  for (size_t idx = 0; idx < expected.size(); ++idx) {
    ASSERT_EQ(std::bit_cast<uint32_t>(expected[idx]), std::bit_cast<uint32_t>(actual[idx]))
        << mode << ": row " << idx / plan.vocab_size << " token " << idx % plan.vocab_size << ": "
        << expected[idx] << " vs " << actual[idx];
  }
}

}  // namespace lapidary
