// The assistant on the CPU: what may follow the last token of some sequences.
//
// A round stands still: every draft asks from one position and sees the target's keys before the
// last token; what was drafted shows in the token and the hidden row fed back alone. It reads the
// target's pages and writes nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "executor/cpu/cpu_blocks.h"
#include "executor/draft_options.h"

namespace lapidary::cpu {

// Where a round begins in one sequence.
struct DraftStart {
  int32_t slot = 0;
  int32_t length = 0;  // keys in the slot's pages, at least one
  int32_t token = 0;   // stands behind them, not computed yet
  std::span<const float>
      hidden;  // [target's hidden] of the row that gave it, behind the final norm
};

// The target as its drafter sees it; of a rank, where several share it.
struct DraftTarget {
  const ModelPlan& plan;
  const ModelWeights& weights;
  const KvLayout& layout;
  const KvMemory& kv;
  const SlotTables& tables;
  int first_token = 0;  // of the embedding's rows
};

// One round at a time: Begin, then NextLogits and Feed in turns. Buffers grow and stay.
class CpuDrafter : private CpuBlocks {
 public:
  // All arguments must outlive the drafter. `weights` are of options.plan.
  CpuDrafter(const DrafterOptions& options, const AssistantWeights& weights,
             const DraftTarget& target, ThreadPool& threads);

  void Begin(std::span<const DraftStart> starts);
  // Goes on with the first `count` sequences alone.
  void KeepFirst(int64_t count);
  // Of the next draft of each sequence, [sequences, vocab] by token id; -inf where an ordered head
  // scored nothing. Valid until the next call.
  std::span<const float> NextLogits();
  // What was drafted, per sequence.
  void Feed(std::span<const int32_t> tokens);

  // NextLogits in parts, for the ranks of a model that is split (cpu_draft_ranks.h): they add up
  // what MakeInputs and Attend return before they go on.
  std::span<float> MakeInputs();
  void ProjectInputs();
  int num_layers() const { return plan_.num_layers; }
  std::span<float> Attend(int layer_idx);
  void FinishLayer(int layer_idx);
  void ProjectOutputs();
  std::span<const float> Head();

 private:
  void DenseHead();
  void OrderedHead();

  const AssistantPlan& assistant_;
  const AssistantWeights& assistant_weights_;
  const std::vector<int32_t>& token_ordering_;
  const DraftPosition position_;
  const DraftTarget target_;

  std::vector<DraftStart> starts_;
  std::vector<int32_t> positions_;      // [sequences] that the drafts ask from
  std::vector<int32_t> tokens_;         // [sequences] the last ones
  std::vector<float> feedback_;         // [sequences, backbone] the hidden rows beside them
  std::vector<float> inputs_;           // [sequences, 2 * backbone] embedding, then hidden
  std::vector<float> centroid_scores_;  // [sequences, num_centroids]
  std::vector<float> logits_;           // [sequences, vocab]
};

}  // namespace lapidary::cpu
