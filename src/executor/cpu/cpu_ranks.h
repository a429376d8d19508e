// A model on the CPU, whole or split over ranks (model/shard.h) that this process runs one after
// another: each has its weights, its KV and its buffers, and all have the same threads.
//
// It does what ranks on several devices would do, with a loop in the place of every exchange.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "executor/cpu/cpu_drafter.h"
#include "executor/cpu/cpu_forward.h"
#include "executor/cpu/kv_memory.h"
#include "model/shard.h"
#include "model/shard_source.h"

namespace lapidary::cpu {

// Every rank's part becomes the sum of all, added in the order of the ranks.
// `parts` [ranks], of equal length.
void AddInRankOrder(const std::vector<std::span<float>>& parts, ThreadPool& threads);

// What a rank has before there are threads to run it. The only one has the model's own.
struct RankWeights {
  Shard shard;
  std::shared_ptr<const TensorSource> source;  // owns what `weights` are views of
  ModelWeights weights;
};

struct RankOptions {
  int num_pages = 0;  // of every rank's KV pool
  Bf16Math bf16_math = Bf16Math::kExact;
  bool skip_unneeded_rows = true;
  ExpertCounts* expert_counts = nullptr;  // null: they are not counted
};

class CpuRanks : private ForwardOps {
 public:
  // `layout`: of a rank, and so of each. All arguments must outlive it, but for the first.
  static Result<std::unique_ptr<CpuRanks>> Make(std::vector<RankWeights> weights,
                                                const ModelPlan& plan, const KvLayout& layout,
                                                const SlotTables& tables, ThreadPool& threads,
                                                const RankOptions& options);

  int size() const { return static_cast<int>(ranks_.size()); }

  void CopyPage(const PageCopy& copy);
  // The decoder over these rows.
  void Run(StepRows rows);
  const StepRows& rows() const { return ranks_[0]->forward.rows(); }
  // [output rows, vocab], valid until the next Run.
  std::span<const float> logits();
  // [output rows, hidden] what the head read, behind the final norm; valid as long.
  std::span<const float> head_inputs() const { return ranks_[0]->forward.head_inputs(); }

  // As a rank's drafter sees it.
  DraftTarget TargetOf(int rank) const;
  KvMemory& kv_memory_for_test(int rank) { return ranks_[rank]->kv; }

 private:
  struct Rank {
    Rank(RankWeights from, KvMemory memory, const KvLayout& layout, const SlotTables& tables,
         ThreadPool& threads, const RankOptions& options);

    const RankWeights own;
    KvMemory kv;
    CpuForward forward;
  };

  CpuRanks(std::vector<std::unique_ptr<Rank>> ranks, const ModelPlan& plan, const KvLayout& layout,
           const SlotTables& tables, ThreadPool& threads, bool skip_unneeded_rows)
      : plan_(plan),
        layout_(layout),
        tables_(tables),
        threads_(threads),
        skip_unneeded_rows_(skip_unneeded_rows),
        ranks_(std::move(ranks)) {}

  // op(a rank's forward, its layer) for every rank.
  template <typename Op>
  void OnEach(const LayerPlan& layer, const Op& op) {
    for (const auto& rank : ranks_) op(rank->forward, rank->own.shard.plan.layers[layer.index]);
  }

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

  const ModelPlan& plan_;
  const KvLayout& layout_;
  const SlotTables& tables_;
  ThreadPool& threads_;
  const bool skip_unneeded_rows_;
  const std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<float> logits_;  // [output rows, vocab], of several ranks
};

}  // namespace lapidary::cpu
