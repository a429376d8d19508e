#include "executor/cpu/cpu_blocks.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/linear_panels.h"

namespace lapidary::cpu {

void AddPageSegments(const KvLayout& layout, const KvMemory& kv, const SlotTables::Table& table,
                     const LayerPlan& owner, int kv_head, int32_t first_key, int32_t end_key,
                     std::vector<KeySegment>& segments) {
  const int tokens_per_page = layout.tokens_per_page[KvGroupOf(owner.kind)];
  for (int32_t key = first_key; key < end_key;) {
    const int32_t block = key / tokens_per_page;
    const int slot = key % tokens_per_page;
    const int32_t count = std::min(end_key - key, tokens_per_page - slot);
    CHECK(table.PageOf(block) != kScratchPage) << "layer " << owner.index << " block " << block;
    const StoredEntries entries = kv.Entries(layout, owner, table.PageOf(block), kv_head, slot);
    segments.push_back({entries.codes, owner.kv_entry.entry_len, count, entries.scales});
    key += count;
  }
}

CpuBlocks::CpuBlocks(const ModelPlan& plan, const ModelWeights& weights, ThreadPool& threads,
                     Bf16Math bf16_math, KvFormat kv_format)
    : plan_(plan),
      weights_(weights),
      threads_(threads),
      bf16_math_(bf16_math),
      kv_format_(kv_format),
      adapters_(threads) {
  for (const LayerPlan& layer : plan.layers) {
    const auto it = std::find(rope_plans_.begin(), rope_plans_.end(), layer.rope);
    rope_of_layer_.push_back(static_cast<int>(it - rope_plans_.begin()));
    if (it == rope_plans_.end()) rope_plans_.push_back(layer.rope);
  }
  rope_tables_.resize(rope_plans_.size());
  attention_scratch_.resize(threads.num_threads());
}

void CpuBlocks::BeginRows(std::span<const int32_t> positions) {
  active_.resize(positions.size());
  std::iota(active_.begin(), active_.end(), 0);
  for (size_t idx = 0; idx < rope_plans_.size(); ++idx) {
    rope_tables_[idx].Fill(rope_plans_[idx].Frequencies(), positions);
  }
}

void CpuBlocks::Multiply(const std::vector<float>& x, const MatrixRef& w, std::vector<float>& y) {
  y.resize(num_active() * w.rows);
  Linear(x.data(), num_active(), w, y.data(), w.rows, threads_, bf16_math_);
}

void CpuBlocks::MultiplyAdapted(const std::vector<float>& x, const MatrixRef& w, AdapterSite site,
                                int layer, std::vector<float>& y) {
  Multiply(x, w, y);
  adapters_.AddTo(site, layer, x.data(), w.cols, y.data(), w.rows);
}

void CpuBlocks::NormHidden(const std::vector<float>& weight, std::vector<float>& out) {
  const int64_t dim = plan_.hidden_size;
  out.resize(num_active() * dim);
  ForEachActive([&](int64_t row) {
    RmsNorm(hidden_.data() + row * dim, weight.data(), plan_.rms_norm_eps, dim,
            out.data() + row * dim);
  });
}

void CpuBlocks::AddNormed(const std::vector<float>& x, const std::vector<float>& weight,
                          float scale) {
  const int64_t dim = plan_.hidden_size;
  ForEachActive([&](int64_t row) {
    AddRmsNorm(x.data() + row * dim, weight.data(), plan_.rms_norm_eps, dim, scale,
               hidden_.data() + row * dim);
  });
}

void CpuBlocks::ProjectQueries(const LayerPlan& layer, const std::vector<float>& owner_k_norm) {
  const AttentionWeights& weights = weights_.layers[layer.index].attention;
  NormHidden(weights_.layers[layer.index].input_norm, normed_);
  const int64_t raw_len = int64_t{layer.num_heads} * layer.head_dim;
  const int64_t query_len = int64_t{layer.num_heads} * layer.kv_entry.key_len;
  queries_.resize(num_active() * query_len);
  MultiplyAdapted(normed_, weights.q_proj, AdapterSite::kQuery, layer.index, raw_);
  const RopeTable& rope = RopeFor(layer);
  const RotaryHead rotary = RotaryOf(layer);
  ForEachActive([&](int64_t row) {
    for (int head = 0; head < layer.num_heads; ++head) {
      MakeCachedQuery(rotary, layer.kv_entry,
                      raw_.data() + row * raw_len + int64_t{head} * layer.head_dim,
                      weights.q_norm.data(), owner_k_norm.data(), plan_.rms_norm_eps,
                      rope.CosRow(active_[row]), rope.SinRow(active_[row]),
                      queries_.data() + row * query_len + int64_t{head} * layer.kv_entry.key_len);
    }
  });
}

HeadGroups CpuBlocks::GroupHeads(const LayerPlan& layer, int64_t num_blocks) const {
  // Together the heads of a KV head read its keys once. But one sequence of a model that has a
  // single KV head would then keep one thread busy.
  int heads = layer.heads_per_kv_head();
  while (heads % 2 == 0 && num_blocks * layer.num_heads / heads < threads_.num_threads()) {
    heads /= 2;
  }
  return {.heads = heads, .count = layer.num_heads / heads};
}

void CpuBlocks::AttendSegments(const LayerPlan& layer, std::span<const KeySegment> segments,
                               int64_t active_idx, int first_head, int num_heads, int thread_idx) {
  const int64_t head = active_idx * layer.num_heads + first_head;
  float* out = attended_.data() + head * layer.head_dim;
  AttendRow(segments, layer.kv_entry, queries_.data() + head * layer.kv_entry.key_len, num_heads,
            attention_scratch_[thread_idx], out, kv_format_);
  RestoreValueOrder(layer.kv_entry, num_heads, out);
}

void CpuBlocks::ProjectAttended(const LayerPlan& layer) {
  MultiplyAdapted(attended_, weights_.layers[layer.index].attention.o_proj,
                  AdapterSite::kAttentionOutput, layer.index, block_out_);
}

void CpuBlocks::AddAttended(const LayerPlan& layer) {
  AddNormed(block_out_, weights_.layers[layer.index].post_attention_norm, /*scale=*/1.0f);
}

void CpuBlocks::RunMlp(const LayerPlan& layer) {
  const LayerWeights& weights = weights_.layers[layer.index];
  const int64_t width = layer.mlp_width;
  NormHidden(weights.pre_mlp_norm, normed_);
  const MatrixRef& gate = weights.mlp.gate_proj;
  const MatrixRef& up = weights.mlp.up_proj;
  if (adapters_.empty() && IsPanelDType(gate.format.unit) && IsPanelDType(up.format.unit)) {
    gate_.resize(num_active() * width);
    up_.resize(num_active() * width);
    GatedLinearPanels(normed_.data(), num_active(), gate, up, gate_.data(), up_.data(), threads_);
  } else {
    MultiplyAdapted(normed_, gate, AdapterSite::kMlpGate, layer.index, gate_);
    MultiplyAdapted(normed_, up, AdapterSite::kMlpUp, layer.index, up_);
    ForEachActive(
        [&](int64_t row) { GeluMul(gate_.data() + row * width, up_.data() + row * width, width); });
  }
  MultiplyAdapted(gate_, weights.mlp.down_proj, AdapterSite::kMlpDown, layer.index, block_out_);
}

}  // namespace lapidary::cpu
