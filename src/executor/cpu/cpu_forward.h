// ForwardOps on the CPU: f32 activations in plain buffers, weights in their stored type.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "executor/cpu/kv_memory.h"
#include "executor/cpu/step_rows.h"
#include "executor/slot_tables.h"
#include "model/forward.h"
#include "model/weights.h"
#include "ops/cpu/moe.h"
#include "ops/cpu/rope.h"

namespace lapidary::cpu {

// Buffers grow to the largest step seen and stay. One step at a time: Begin, RunDecoder, logits().
class CpuForward : public ForwardOps {
 public:
  CpuForward(const ModelPlan& plan, const ModelWeights& weights, const KvLayout& layout,
             const KvMemory& kv, const SlotTables& tables, ThreadPool& threads);

  void Begin(StepRows rows);
  const StepRows& rows() const { return rows_; }

  // [output rows, vocab], valid until the next Begin.
  std::span<float> logits() { return logits_; }

  void Embed() override;
  void MakePerLayerInputs() override;
  void KeepOutputRows() override;
  void ProjectAttention(const LayerPlan& layer) override;
  void Attend(const LayerPlan& layer) override;
  void AttentionOutput(const LayerPlan& layer) override;
  void DenseMlp(const LayerPlan& layer) override;
  void Experts(const LayerPlan& layer) override;
  void MlpOutput(const LayerPlan& layer) override;
  void PerLayerGate(const LayerPlan& layer) override;
  void StoreKv(const LayerPlan& layer) override;
  void Head() override;

 private:
  int64_t num_active() const { return static_cast<int64_t>(active_.size()); }
  // body(active row) over the threads.
  template <typename Body>
  void ForEachActive(const Body& body);
  // out[row] = rmsnorm(h[row]; weight) for the active rows.
  void NormHidden(const std::vector<float>& weight, std::vector<float>& out);
  // h = (h + rmsnorm(x; weight)) * scale for the active rows.
  void AddNormed(const std::vector<float>& x, const std::vector<float>& weight, float scale);
  void ProjectKv(const LayerPlan& layer);
  void AttendTask(const LayerPlan& layer, int64_t active_idx, int kv_head, int thread_idx);
  // The step's own entries of an owning layer: [rows, num_kv_heads, entry_len].
  std::vector<float>& NewEntries(int owner_layer);
  const RopeTable& RopeFor(const LayerPlan& layer) const;

  const ModelPlan& plan_;
  const ModelWeights& weights_;
  const KvLayout& layout_;
  const KvMemory& kv_;
  const SlotTables& tables_;
  ThreadPool& threads_;

  StepRows rows_;
  std::vector<int32_t> active_;  // rows still being computed: all, then the output rows

  std::vector<RopePlan> rope_plans_;  // the distinct ones
  std::vector<int> rope_of_layer_;    // index into rope_plans_
  std::vector<RopeTable> rope_tables_;

  std::vector<float> hidden_;      // [active, hidden] the residual stream
  std::vector<float> normed_;      // [active, hidden]
  std::vector<float> ple_inputs_;  // [active, layers * ple_width]
  std::vector<float> raw_;         // projections before their norms
  std::vector<float> raw_v_;
  std::vector<float> queries_;     // [active, num_heads, key_len] in cached form
  std::vector<float> attended_;    // [active, num_heads, head_dim]
  std::vector<float> block_out_;   // [active, hidden] what a block adds
  std::vector<float> gate_;        // [active, width]
  std::vector<float> up_;          // [active, width]
  std::vector<float> expert_out_;  // [active, hidden]
  std::vector<float> logits_;      // [output rows, vocab]
  std::vector<ExpertChoice> choices_;
  ExpertScratch expert_scratch_;
  std::vector<std::vector<float>> scores_;  // per thread

  std::map<int, std::vector<float>> donor_entries_;  // by layer: kept until their last reader ran
  std::vector<float> entries_;                       // every other owner, reused
};

}  // namespace lapidary::cpu
