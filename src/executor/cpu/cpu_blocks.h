// What every decoder does with its rows on the CPU, a model's and an assistant's alike: queries,
// attention over pages, the output projection, the MLP. f32 activations in plain buffers, weights
// in their stored type.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "executor/cpu/kv_memory.h"
#include "executor/cpu/row_adapters.h"
#include "executor/slot_tables.h"
#include "model/weights.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/rope.h"

namespace lapidary::cpu {

inline RotaryHead RotaryOf(const LayerPlan& layer) {
  return {.head_dim = layer.head_dim, .num_rotary_pairs = layer.rope.num_rotary_pairs};
}

// Keys of one KV head as they lie in the pages of a table: [first_key, end_key) of `owner`.
void AddPageSegments(const KvLayout& layout, const KvMemory& kv, const SlotTables::Table& table,
                     const LayerPlan& owner, int kv_head, int32_t first_key, int32_t end_key,
                     std::vector<KeySegment>& segments);

// Heads of a row in groups of as many, each within a KV head.
struct HeadGroups {
  int heads = 1;  // of a group
  int count = 1;  // of groups in a row
};

// Buffers grow to the largest step seen and stay.
class CpuBlocks {
 protected:
  CpuBlocks(const ModelPlan& plan, const ModelWeights& weights, ThreadPool& threads,
            Bf16Math bf16_math, KvFormat kv_format);

  // All rows of a step, at these positions; all of them active.
  void BeginRows(std::span<const int32_t> positions);
  int64_t num_active() const { return static_cast<int64_t>(active_.size()); }

  // body(active row) over the threads.
  template <typename Body>
  void ForEachActive(const Body& body) {
    threads_.ParallelFor(num_active(), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) body(row);
    });
  }
  // y [active, rows of w] = x [active, columns of w] * w^T; y is resized.
  void Multiply(const std::vector<float>& x, const MatrixRef& w, std::vector<float>& y);
  // The same with what the rows' adapters add to this matrix. `layer` -1: outside the layers.
  void MultiplyAdapted(const std::vector<float>& x, const MatrixRef& w, AdapterSite site, int layer,
                       std::vector<float>& y);
  // out[row] = rmsnorm(h[row]; weight) for the active rows.
  void NormHidden(const std::vector<float>& weight, std::vector<float>& out);
  // h = (h + rmsnorm(x; weight)) * scale for the active rows.
  void AddNormed(const std::vector<float>& x, const std::vector<float>& weight, float scale);

  // normed = rmsnorm(h); queries = their projection in the form that the owner's entries are read
  // with. `owner_k_norm` [head_dim]: of the layer that owns the entries.
  void ProjectQueries(const LayerPlan& layer, const std::vector<float>& owner_k_norm);
  // How the heads of `num_blocks` blocks of rows are shared out.
  HeadGroups GroupHeads(const LayerPlan& layer, int64_t num_blocks) const;
  // task(active row, first head, heads, thread) over the threads.
  template <typename Task>
  void ForEachHeadGroup(const LayerPlan& layer, const Task& task) {
    attended_.resize(num_active() * layer.num_heads * layer.head_dim);
    const HeadGroups groups = GroupHeads(layer, num_active());
    threads_.ParallelFor(
        num_active() * groups.count, 1, [&](int64_t begin, int64_t end, int thread_idx) {
          for (int64_t idx = begin; idx < end; ++idx) {
            const int first_head = static_cast<int>(idx % groups.count) * groups.heads;
            task(idx / groups.count, first_head, groups.heads, thread_idx);
          }
        });
  }
  // Heads of an active row, all of one KV head, over its keys.
  void AttendSegments(const LayerPlan& layer, std::span<const KeySegment> segments,
                      int64_t active_idx, int first_head, int num_heads, int thread_idx);
  // block_out = Wo a
  void ProjectAttended(const LayerPlan& layer);
  // h += rmsnorm(block_out)
  void AddAttended(const LayerPlan& layer);
  // block_out = W_down(gelu(W_gate n) * (W_up n)), n = rmsnorm(h)
  void RunMlp(const LayerPlan& layer);

  const RopeTable& RopeFor(const LayerPlan& layer) const {
    return rope_tables_[rope_of_layer_[layer.index]];
  }

  const ModelPlan& plan_;
  const ModelWeights& weights_;
  ThreadPool& threads_;
  const Bf16Math bf16_math_;
  const KvFormat kv_format_;  // of the entries that attention reads

  std::vector<int32_t> active_;  // rows still being computed, of those of BeginRows
  RowAdapters adapters_;         // of the active rows

  std::vector<float> hidden_;                        // [active, hidden] the residual stream
  std::vector<float> normed_;                        // [active, hidden]
  std::vector<float> raw_;                           // projections before their norms
  std::vector<float> queries_;                       // [active, num_heads, key_len] in cached form
  std::vector<float> attended_;                      // [active, num_heads, head_dim]
  std::vector<float> block_out_;                     // [active, hidden] what a block adds
  std::vector<float> gate_;                          // [active, width]
  std::vector<float> up_;                            // [active, width]
  std::vector<AttentionScratch> attention_scratch_;  // per thread

 private:
  std::vector<RopePlan> rope_plans_;  // the distinct ones
  std::vector<int> rope_of_layer_;    // index into rope_plans_
  std::vector<RopeTable> rope_tables_;
};

}  // namespace lapidary::cpu
