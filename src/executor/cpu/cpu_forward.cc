#include "executor/cpu/cpu_forward.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/kv_codes.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/per_layer_inputs.h"
#include "ops/cpu/thread_buffer.h"

namespace lapidary::cpu {
namespace {

int32_t FirstKey(const LayerPlan& layer, int32_t position) {
  return layer.window == 0 ? 0 : std::max(0, position - layer.window + 1);
}

}  // namespace

CpuForward::CpuForward(const ModelPlan& plan, int first_token, const ModelWeights& weights,
                       const KvLayout& layout, const KvMemory& kv, const SlotTables& tables,
                       ThreadPool& threads, ExpertCounts* expert_counts, Bf16Math bf16_math)
    : CpuBlocks(plan, weights, threads, bf16_math, layout.format),
      first_token_(first_token),
      layout_(layout),
      kv_(kv),
      tables_(tables),
      expert_counts_(expert_counts) {
  for (const LayerPlan& layer : plan.layers) {
    if (!layer.owns_kv()) donor_entries_[layer.kv_layer];
  }
}

void CpuForward::Begin(StepRows rows) {
  rows_ = std::move(rows);
  BeginRows(rows_.positions);
  adapters_.Begin(rows_.adapters, active_);
}

CpuForward::StepEntries& CpuForward::NewEntries(int owner_layer) {
  const auto it = donor_entries_.find(owner_layer);
  return it == donor_entries_.end() ? entries_ : it->second;
}

void CpuForward::StepEntries::Resize(KvFormat format, const LayerPlan& owner, int64_t rows) {
  num_rows = rows;
  const int64_t entries = rows * owner.num_kv_heads;
  codes.resize(entries * owner.kv_entry.entry_len * KvElementBytes(format));
  scales.resize(entries * NumKvScales(format, owner.kv_entry));
}

StoredEntries CpuForward::StepEntries::From(KvFormat format, const LayerPlan& owner, int kv_head,
                                            int64_t row) {
  return StoredEntries{codes.data(), scales.data()}.From(format, owner.kv_entry,
                                                         kv_head * num_rows + row);
}

void CpuForward::AllReduce(PartialSum) { CHECK(false) << "a rank alone has nothing to add up"; }

std::vector<std::span<float>> CpuForward::Partial(PartialSum what) {
  const size_t values = static_cast<size_t>(num_active() * plan_.hidden_size);
  if (what == PartialSum::kEmbedding) return {std::span(hidden_).first(values)};
  std::vector<std::span<float>> parts = {std::span(block_out_).first(values)};
  if (what == PartialSum::kBlockAndExperts) parts.push_back(std::span(expert_out_).first(values));
  return parts;
}

void CpuForward::Embed() {
  const int64_t dim = plan_.hidden_size;
  hidden_.resize(num_active() * dim);
  ForEachActive([&](int64_t row) {
    float* hidden = hidden_.data() + row * dim;
    const float* soft = rows_.soft_rows.empty() ? nullptr : rows_.soft_rows[row];
    const int32_t token = rows_.token_ids[row] - first_token_;
    if (soft == nullptr && token >= 0 && token < plan_.vocab_size) {
      GatherRow(weights_.embedding, token, plan_.embedding_scale, hidden);
    } else if (soft != nullptr && first_token_ == 0) {
      std::copy_n(soft, dim, hidden);
    } else {
      std::fill_n(hidden, dim, 0.0f);  // Another rank has it.
    }
  });
}

void CpuForward::MakePerLayerInputs() {
  const int64_t columns = int64_t{plan_.ple->width} * plan_.num_layers;
  ple_inputs_.resize(num_active() * columns);
  MultiplyAdapted(hidden_, weights_.ple_projection, AdapterSite::kPerLayerModelProjection,
                  /*layer=*/-1, raw_);
  ForEachActive([&](int64_t row) {
    MakePerLayerInputsRow(weights_.ple_table, rows_.token_ids[row], weights_.ple_projection_norm,
                          plan_.rms_norm_eps, plan_.hidden_size, raw_.data() + row * columns,
                          ple_inputs_.data() + row * columns);
  });
}

void CpuForward::KeepOutputRows() {
  const int64_t dim = plan_.hidden_size;
  const int64_t ple_columns = plan_.ple ? int64_t{plan_.ple->width} * plan_.num_layers : 0;
  // Output rows are ascending, so a row never moves onto one that is still to be moved.
  for (size_t idx = 0; idx < rows_.output_rows.size(); ++idx) {
    const int64_t row = rows_.output_rows[idx];
    std::copy_n(hidden_.data() + row * dim, dim, hidden_.data() + idx * dim);
    std::copy_n(ple_inputs_.data() + row * ple_columns, ple_columns,
                ple_inputs_.data() + idx * ple_columns);
  }
  active_ = rows_.output_rows;
  adapters_.Begin(rows_.adapters, active_);
}

void CpuForward::ProjectAttention(const LayerPlan& layer) {
  ProjectQueries(layer, weights_.layers[layer.kv_layer].attention.k_norm);
  if (layer.owns_kv()) ProjectKv(layer);
}

void CpuForward::ProjectKv(const LayerPlan& layer) {
  CHECK_EQ(num_active(), rows_.num_rows());  // Owners of KV see every row.
  const AttentionWeights& weights = weights_.layers[layer.index].attention;
  const int64_t raw_len = int64_t{layer.num_kv_heads} * layer.head_dim;
  StepEntries& entries = NewEntries(layer.index);
  entries.Resize(layout_.format, layer, num_active());
  // With K = V an adapter's k_proj moves both.
  MultiplyAdapted(normed_, weights.k_proj, AdapterSite::kKey, layer.index, raw_);
  if (!layer.k_is_v) {
    MultiplyAdapted(normed_, weights.v_proj, AdapterSite::kValue, layer.index, raw_v_);
  }
  const RopeTable& rope = RopeFor(layer);
  ForEachActive([&](int64_t row) {
    static thread_local ThreadBuffer<float> scratch;
    float* const values = scratch.Get(layer.kv_entry.entry_len);
    for (int head = 0; head < layer.num_kv_heads; ++head) {
      const int64_t raw_at = row * raw_len + int64_t{head} * layer.head_dim;
      const float* k_raw = raw_.data() + raw_at;
      const float* v_raw = layer.k_is_v ? k_raw : raw_v_.data() + raw_at;
      MakeKvEntry(RotaryOf(layer), layer.kv_entry, k_raw, v_raw, weights.k_norm.data(),
                  plan_.rms_norm_eps, rope.CosRow(row), rope.SinRow(row), values);
      const StoredEntries stored = entries.From(layout_.format, layer, head, row);
      EncodeKvEntry(layout_.format, layer.kv_entry, values, stored.codes, stored.scales);
    }
  });
}

std::vector<CpuForward::RowBlock> CpuForward::AttentionBlocks(const LayerPlan& layer) const {
  // Enough heads of rows that keys, which a long context has more of than the caches hold, are read
  // from memory seldom, but not more scores than that saves; and two blocks for every thread, or
  // chunks of a hundred rows, as short steps have them, would be cut into blocks that read keys
  // twice as often.
  constexpr int64_t kMaxQueries = 96;
  constexpr int64_t kMaxScores = int64_t{1} << 20;
  const int64_t heads = layer.heads_per_kv_head();
  const int64_t row_share =
      num_active() * layer.num_kv_heads / (int64_t{2} * threads_.num_threads());
  std::vector<RowBlock> blocks;
  for (int64_t begin = 0; begin < num_active();) {
    const int32_t sequence_idx = rows_.sequence_of[active_[begin]];
    const int32_t position = rows_.positions[active_[begin]];
    const int64_t num_keys = position - FirstKey(layer, position) + 1;
    const int64_t max_rows = std::max<int64_t>(
        1, std::min({kMaxQueries / heads, kMaxScores / (heads * num_keys), row_share}));
    int64_t end = begin + 1;
    while (end < num_active() && end - begin < max_rows &&
           rows_.sequence_of[active_[end]] == sequence_idx) {
      ++end;
    }
    blocks.push_back({begin, end});
    begin = end;
  }
  return blocks;
}

void CpuForward::Attend(const LayerPlan& layer) {
  attended_.resize(num_active() * layer.num_heads * layer.head_dim);
  const std::vector<RowBlock> blocks = AttentionBlocks(layer);
  const HeadGroups groups = GroupHeads(layer, std::ssize(blocks));
  const int64_t num_tasks = std::ssize(blocks) * groups.count;
  threads_.ParallelFor(num_tasks, 1, [&](int64_t begin, int64_t end, int thread_idx) {
    for (int64_t task = begin; task < end; ++task) {
      // Later rows see more keys: the longest tasks go first.
      const RowBlock& block = blocks[blocks.size() - 1 - task / groups.count];
      const int first_head = static_cast<int>(task % groups.count) * groups.heads;
      AttendBlock(layer, block, first_head, groups.heads, thread_idx);
    }
  });
}

std::vector<KeySegment> CpuForward::KeySegments(const LayerPlan& layer, int32_t sequence_idx,
                                                int kv_head, int32_t first_key, int32_t last_key) {
  const LayerPlan& owner = plan_.layers[layer.kv_layer];
  const SlotTables::Table& table = tables_.Of(rows_.slot_of[sequence_idx], KvGroupOf(layer.kind));
  const int32_t num_cached = rows_.first_position[sequence_idx];

  // Keys [first_key, num_cached) lie in pages, [num_cached, last_key] in this step's own entries.
  std::vector<KeySegment> segments;
  AddPageSegments(layout_, kv_, table, owner, kv_head, first_key, num_cached, segments);
  const int32_t first_new = std::max(first_key, num_cached);
  const int64_t first_local = rows_.sequence_begin[sequence_idx] + (first_new - num_cached);
  const StoredEntries entries =
      NewEntries(owner.index).From(layout_.format, owner, kv_head, first_local);
  segments.push_back(
      {entries.codes, owner.kv_entry.entry_len, last_key - first_new + 1, entries.scales});
  return segments;
}

int32_t CpuForward::LastKey(const LayerPlan& layer, int32_t row) const {
  const bool sees_ahead = layer.kind == AttentionKind::kSliding && !rows_.last_seen.empty();
  return sees_ahead ? rows_.last_seen[row] : rows_.positions[row];
}

void CpuForward::AttendBlock(const LayerPlan& layer, RowBlock block, int first_head, int num_heads,
                             int thread_idx) {
  const int kv_head = first_head / layer.heads_per_kv_head();
  const int32_t first_key = FirstKey(layer, rows_.positions[active_[block.begin]]);
  const int32_t last_key = LastKey(layer, active_[block.end - 1]);
  const std::vector<KeySegment> segments =
      KeySegments(layer, rows_.sequence_of[active_[block.begin]], kv_head, first_key, last_key);
  if (block.end - block.begin == 1) {
    return AttendSegments(layer, segments, block.begin, first_head, num_heads, thread_idx);
  }
  std::vector<AttentionRow> rows;
  for (int64_t row = block.begin; row < block.end; ++row) {
    const int32_t position = rows_.positions[active_[row]];
    const int64_t head = row * layer.num_heads + first_head;
    rows.push_back({.q = queries_.data() + head * layer.kv_entry.key_len,
                    .out = attended_.data() + head * layer.head_dim,
                    .begin = FirstKey(layer, position) - first_key,
                    .end = LastKey(layer, active_[row]) - first_key + 1});
  }
  AttendRows(segments, layer.kv_entry, num_heads, rows, attention_scratch_[thread_idx], kv_format_);
  for (const AttentionRow& row : rows) RestoreValueOrder(layer.kv_entry, num_heads, row.out);
}

void CpuForward::AttentionOutput(const LayerPlan& layer) { ProjectAttended(layer); }

void CpuForward::AddAttention(const LayerPlan& layer) { AddAttended(layer); }

void CpuForward::DenseMlp(const LayerPlan& layer) { RunMlp(layer); }

void CpuForward::Experts(const LayerPlan& layer) {
  const MoeWeights& weights = weights_.layers[layer.index].moe;
  const MoePlan& moe = *plan_.moe;
  const int64_t dim = plan_.hidden_size;

  // The router reads the raw residual, with a norm of its own.
  normed_.resize(num_active() * dim);
  ForEachActive([&](int64_t row) {
    MakeRouterInput(hidden_.data() + row * dim, weights.router_scale, plan_.rms_norm_eps,
                    normed_.data() + row * dim);
  });
  raw_.resize(num_active() * moe.num_experts);
  // Exact: rounding would choose other experts.
  Linear(normed_.data(), num_active(), weights.router_proj, raw_.data(), moe.num_experts, threads_);
  adapters_.AddTo(AdapterSite::kRouter, layer.index, normed_.data(), dim, raw_.data(),
                  moe.num_experts);
  choices_.resize(num_active() * moe.top_k);
  ForEachActive([&](int64_t row) {
    RouteRow({raw_.data() + row * moe.num_experts, static_cast<size_t>(moe.num_experts)},
             weights.per_expert_scale,
             {choices_.data() + row * moe.top_k, static_cast<size_t>(moe.top_k)});
  });
  if (expert_counts_ != nullptr) {
    for (const ExpertChoice& choice : choices_) expert_counts_->Add(layer.index, choice.expert, 1);
  }

  NormHidden(weights.pre_norm, normed_);
  expert_out_.resize(num_active() * dim);
  const RowAdapters::OfExperts deltas = adapters_.ExpertsOf(layer.index);
  RunExperts(weights.gate_up_proj, weights.down_proj, moe.top_k, normed_.data(), num_active(),
             choices_, expert_scratch_, expert_out_.data(), threads_, bf16_math_,
             deltas.empty() ? nullptr : &deltas);
}

void CpuForward::JoinExperts(const LayerPlan& layer) {
  const MoeWeights& weights = weights_.layers[layer.index].moe;
  const int64_t dim = plan_.hidden_size;
  ForEachActive([&](int64_t row) {
    float* dense = block_out_.data() + row * dim;
    RmsNorm(dense, weights.post_dense_norm.data(), plan_.rms_norm_eps, dim, dense);
    AddRmsNorm(expert_out_.data() + row * dim, weights.post_expert_norm.data(), plan_.rms_norm_eps,
               dim, /*scale=*/1.0f, dense);
  });
}

void CpuForward::MlpOutput(const LayerPlan& layer) {
  const LayerWeights& weights = weights_.layers[layer.index];
  AddNormed(block_out_, weights.post_mlp_norm, plan_.ple ? 1.0f : weights.layer_scalar);
}

void CpuForward::PerLayerGate(const LayerPlan& layer) {
  const LayerWeights& weights = weights_.layers[layer.index];
  const int64_t width = plan_.ple->width;
  const int64_t columns = width * plan_.num_layers;
  MultiplyAdapted(hidden_, weights.ple.gate, AdapterSite::kPerLayerGate, layer.index, gate_);
  ForEachActive([&](int64_t row) {
    GeluMul(gate_.data() + row * width, ple_inputs_.data() + row * columns + layer.index * width,
            width);
  });
  MultiplyAdapted(gate_, weights.ple.projection, AdapterSite::kPerLayerProjection, layer.index,
                  block_out_);
  AddNormed(block_out_, weights.ple.post_norm, weights.layer_scalar);
}

void CpuForward::StoreKv(const LayerPlan& layer) {
  const int group_idx = KvGroupOf(layer.kind);
  const int tokens_per_page = layout_.tokens_per_page[group_idx];
  const size_t code_bytes =
      static_cast<size_t>(layer.kv_entry.entry_len * KvElementBytes(layout_.format));
  const int num_scales = NumKvScales(layout_.format, layer.kv_entry);
  StepEntries& entries = NewEntries(layer.index);
  threads_.ParallelFor(rows_.num_rows(), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const SlotTables::Table& table = tables_.Of(rows_.slot_of[rows_.sequence_of[row]], group_idx);
      const int32_t block = rows_.positions[row] / tokens_per_page;
      if (table.PageOf(block) == kScratchPage) continue;
      for (int head = 0; head < layer.num_kv_heads; ++head) {
        const StoredEntries from = entries.From(layout_.format, layer, head, row);
        const StoredEntries to = kv_.Entries(layout_, layer, table.PageOf(block), head,
                                             rows_.positions[row] % tokens_per_page);
        std::memcpy(to.codes, from.codes, code_bytes);
        std::copy_n(from.scales, num_scales, to.scales);
      }
    }
  });
}

void CpuForward::Head() {
  NormHidden(weights_.final_norm, normed_);
  Multiply(normed_, weights_.head, logits_);
  if (plan_.logit_softcap == 0.0f) return;
  constexpr int64_t kPiece =
      1 << 14;  // a multiple of every vector length: elements keep their lane
  const int64_t total = static_cast<int64_t>(logits_.size());
  threads_.ParallelFor(total, kPiece, [&](int64_t begin, int64_t end, int) {
    Softcap(logits_.data() + begin, plan_.logit_softcap, end - begin);
  });
}

}  // namespace lapidary::cpu
