#include "executor/cuda/step_layout.h"

#include <algorithm>

#include "ops/cuda/attention/attention_work.h"
#include "ops/cuda/sampling/sampling_types.h"

namespace lapidary::cuda {
namespace {

constexpr int64_t kAlignment = 16;

// Hands out aligned places one after the other.
class Placer {
 public:
  template <typename T>
  int64_t Place(int64_t count) {
    const int64_t at = end_;
    end_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

}  // namespace

bool StepShape::FitsInto(const StepShape& padded) const {
  bool fits = rows == padded.rows && sequences == padded.sequences && outputs == padded.outputs &&
              sampled == padded.sampled && two_row_sets == padded.two_row_sets &&
              rounds == padded.rounds && sees_ahead == padded.sees_ahead &&
              table_entries <= padded.table_entries;
  for (int group = 0; group < kNumKvGroups; ++group) fits &= items[group] <= padded.items[group];
  return fits;
}

StepOffsets LayOutStep(const StepShape& shape) {
  Placer placer;
  StepOffsets offsets;
  offsets.counts = placer.Place<PlannedCounts>(1);
  offsets.planned = placer.Place<PlannedSequence>(shape.sequences);
  offsets.planned_ids = placer.Place<int32_t>(shape.rows);
  offsets.sequence_of = placer.Place<int32_t>(shape.rows);
  offsets.output_rows = placer.Place<int32_t>(shape.outputs);
  offsets.sampling = placer.Place<SamplingRow>(shape.sampled);
  offsets.rounds = placer.Place<PlannedRound>(shape.rounds);
  offsets.table_entries = placer.Place<PlannedTableEntry>(shape.table_entries);
  if (shape.sees_ahead) {
    offsets.keys_ahead[kAllRows] = placer.Place<int32_t>(shape.rows);
    offsets.keys_ahead[kOutputRows] = placer.Place<int32_t>(shape.outputs);
  }
  int64_t num_items = 0;
  for (int row_set = 0; row_set < kNumRowSets; ++row_set) {
    if (!shape.HasRowSet(row_set)) continue;
    for (const int items : shape.items) num_items += items;
  }
  offsets.planned_items = placer.Place<AttentionItem>(num_items);

  offsets.token_ids = placer.Place<int32_t>(shape.rows);
  offsets.positions = placer.Place<int32_t>(shape.rows);
  offsets.draft_tokens = placer.Place<int32_t>(shape.rounds);
  offsets.draft_positions = placer.Place<int32_t>(shape.rounds);
  for (int group = 0; group < kNumKvGroups; ++group) {
    offsets.write_pages[group] = placer.Place<int32_t>(shape.rows);
    offsets.write_slots[group] = placer.Place<int32_t>(shape.rows);
    for (int row_set = 0; row_set < kNumRowSets; ++row_set) {
      if (!shape.HasRowSet(row_set)) {
        offsets.num_items[group][row_set] = offsets.num_items[group][kAllRows];
        offsets.attention[group][row_set] = offsets.attention[group][kAllRows];
        offsets.items[group][row_set] = offsets.items[group][kAllRows];
        continue;
      }
      offsets.num_items[group][row_set] = placer.Place<int32_t>(1);
      offsets.attention[group][row_set] = placer.Place<AttentionSequence>(shape.sequences);
      offsets.items[group][row_set] = placer.Place<AttentionItem>(shape.items[group]);
    }
  }
  offsets.total = placer.end();
  return offsets;
}

int GraphTableEntries(int sequences) { return 4 * sequences + 64; }

int AttentionTiles(const LayerPlan& layer, int num_queries) {
  // Smaller tiles are for sequences that fit into one.
  constexpr int kTileRows = 64;
  const int queries_per_tile = std::max(1, kTileRows / layer.heads_per_kv_head());
  return (num_queries + queries_per_tile - 1) / queries_per_tile;
}

StepShape MaxStepShape(const ModelPlan& plan, const KvLayout& layout,
                       const CudaForwardLimits& limits) {
  const int64_t max_rows = limits.max_rows;
  StepShape shape;
  shape.rows = static_cast<int>(max_rows);
  shape.sequences = limits.max_sequences;
  shape.outputs = shape.rows;
  shape.sampled = shape.rows;
  shape.two_row_sets = true;
  shape.rounds = limits.max_drafts > 0 ? shape.sequences : 0;
  shape.sees_ahead = plan.images_see_both_ways;
  int64_t table_entries = GraphTableEntries(shape.sequences);
  for (int group = 0; group < kNumKvGroups; ++group) {
    // All that a resumed prefix, the slack behind its window and the new rows may hold.
    const int window = plan.kv_groups[group].window;
    const int64_t tokens = layout.tokens_per_page[group];
    const int64_t reach = window == 0 ? plan.max_context : window + 1024;
    table_entries += shape.sequences * (std::min<int64_t>(reach, plan.max_context) / tokens + 3) +
                     max_rows / tokens;
  }
  shape.table_entries = static_cast<int>(table_entries);
  for (const LayerPlan& layer : plan.layers) {
    const int group = KvGroupOf(layer.kind);
    const int64_t tiles =
        AttentionTiles(layer, static_cast<int>(max_rows)) + int64_t{shape.sequences};
    shape.items[group] = static_cast<int>(tiles * layer.num_kv_heads + limits.max_partials);
  }
  return shape;
}

}  // namespace lapidary::cuda
