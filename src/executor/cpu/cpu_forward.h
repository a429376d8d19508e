// ForwardOps on the CPU.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "executor/cpu/cpu_blocks.h"
#include "executor/cpu/step_rows.h"
#include "model/expert_counts.h"
#include "model/forward.h"
#include "ops/cpu/moe.h"

namespace lapidary::cpu {

// One step at a time: Begin, RunDecoder, logits(). Of one rank where several share the model: its
// plan has `plan.vocab_size` tokens from `first_token` on, and whoever runs it adds partial sums
// up.
class CpuForward : public ForwardOps, private CpuBlocks {
 public:
  CpuForward(const ModelPlan& plan, int first_token, const ModelWeights& weights,
             const KvLayout& layout, const KvMemory& kv, const SlotTables& tables,
             ThreadPool& threads, ExpertCounts* expert_counts, Bf16Math bf16_math);

  void Begin(StepRows rows);
  const StepRows& rows() const { return rows_; }

  // [output rows, vocab], valid until the next Begin.
  std::span<float> logits() { return logits_; }
  // What this rank has of a sum, [active, hidden]; of two, dense MLP and experts.
  std::vector<std::span<float>> Partial(PartialSum what);
  // [output rows, hidden] what the head read, behind the final norm; valid as long.
  std::span<const float> head_inputs() const { return normed_; }

  void AllReduce(PartialSum what) override;
  void Embed() override;
  void MakePerLayerInputs() override;
  void KeepOutputRows() override;
  void ProjectAttention(const LayerPlan& layer) override;
  void Attend(const LayerPlan& layer) override;
  void AttentionOutput(const LayerPlan& layer) override;
  void AddAttention(const LayerPlan& layer) override;
  void DenseMlp(const LayerPlan& layer) override;
  void Experts(const LayerPlan& layer) override;
  void JoinExperts(const LayerPlan& layer) override;
  void MlpOutput(const LayerPlan& layer) override;
  void PerLayerGate(const LayerPlan& layer) override;
  void StoreKv(const LayerPlan& layer) override;
  void Head() override;

 private:
  void ProjectKv(const LayerPlan& layer);
  // The last key that a row sees: its own, or in sliding layers the last of its image.
  int32_t LastKey(const LayerPlan& layer, int32_t row) const;
  // Active rows [begin, end), all of one sequence.
  struct RowBlock {
    int64_t begin;
    int64_t end;
  };
  std::vector<RowBlock> AttentionBlocks(const LayerPlan& layer) const;
  // Heads of all rows of a block, all of one KV head.
  void AttendBlock(const LayerPlan& layer, RowBlock block, int first_head, int num_heads,
                   int thread_idx);
  // The keys [first_key, last_key] of a sequence and one KV head.
  std::vector<KeySegment> KeySegments(const LayerPlan& layer, int32_t sequence_idx, int kv_head,
                                      int32_t first_key, int32_t last_key);
  // A step's own entries of an owning layer, in the cache's format: [KV head, row, entry].
  struct StepEntries {
    int64_t num_rows = 0;
    std::vector<std::byte> codes;
    std::vector<float> scales;

    void Resize(KvFormat format, const LayerPlan& owner, int64_t rows);
    // Of a KV head, from that of a row on.
    StoredEntries From(KvFormat format, const LayerPlan& owner, int kv_head, int64_t row);
  };
  StepEntries& NewEntries(int owner_layer);

  const int first_token_;
  const KvLayout& layout_;
  const KvMemory& kv_;
  const SlotTables& tables_;
  ExpertCounts* const expert_counts_;  // null: they are not counted

  StepRows rows_;
  std::vector<float> ple_inputs_;  // [active, layers * ple_width]
  std::vector<float> raw_v_;
  std::vector<float> expert_out_;  // [active, hidden]
  std::vector<float> logits_;      // [output rows, vocab]
  std::vector<ExpertChoice> choices_;
  ExpertScratch expert_scratch_;

  std::map<int, StepEntries> donor_entries_;  // by layer: kept until their last reader ran
  StepEntries entries_;                       // every other owner, reused
};

}  // namespace lapidary::cpu
