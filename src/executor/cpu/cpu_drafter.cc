#include "executor/cpu/cpu_drafter.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/linear.h"

namespace lapidary::cpu {

CpuDrafter::CpuDrafter(const DrafterOptions& options, const AssistantWeights& weights,
                       const DraftTarget& target, ThreadPool& threads)
    : CpuBlocks(options.plan.decoder, weights.decoder, threads, Bf16Math::kExact,
                target.layout.format),
      assistant_(options.plan),
      assistant_weights_(weights),
      token_ordering_(options.source->token_ordering()),
      position_(options.position),
      target_(target) {}

void CpuDrafter::Begin(std::span<const DraftStart> starts) {
  const int64_t backbone = assistant_.backbone_hidden_size;
  starts_.assign(starts.begin(), starts.end());
  positions_.clear();
  tokens_.clear();
  feedback_.resize(starts.size() * backbone);
  for (size_t idx = 0; idx < starts.size(); ++idx) {
    CHECK_GT(starts[idx].length, 0);
    CHECK_EQ(static_cast<int64_t>(starts[idx].hidden.size()), backbone);
    positions_.push_back(starts[idx].length - (position_ == DraftPosition::kBeforeIt ? 1 : 0));
    tokens_.push_back(starts[idx].token);
    std::copy_n(starts[idx].hidden.data(), backbone, feedback_.data() + idx * backbone);
  }
  BeginRows(positions_);
}

void CpuDrafter::KeepFirst(int64_t count) { active_.resize(count); }

std::span<const float> CpuDrafter::NextLogits() {
  MakeInputs();
  ProjectInputs();
  for (int layer_idx = 0; layer_idx < num_layers(); ++layer_idx) {
    Attend(layer_idx);
    FinishLayer(layer_idx);
  }
  ProjectOutputs();
  return Head();
}

std::span<float> CpuDrafter::MakeInputs() {
  const int64_t backbone = assistant_.backbone_hidden_size;
  inputs_.resize(num_active() * 2 * backbone);
  // The hidden rows are whole on every rank: where they are added up, the first one brings them.
  const bool brings_hidden = target_.first_token == 0;
  ForEachActive([&](int64_t row) {
    float* input = inputs_.data() + row * 2 * backbone;
    const int32_t token = tokens_[row] - target_.first_token;
    if (token >= 0 && token < target_.plan.vocab_size) {
      GatherRow(target_.weights.embedding, token, target_.plan.embedding_scale, input);
    } else {
      std::fill_n(input, backbone, 0.0f);  // Another rank has it.
    }
    if (brings_hidden) {
      std::copy_n(feedback_.data() + row * backbone, backbone, input + backbone);
    } else {
      std::fill_n(input + backbone, backbone, 0.0f);
    }
  });
  return inputs_;
}

void CpuDrafter::ProjectInputs() {
  hidden_.resize(num_active() * plan_.hidden_size);
  Linear(inputs_.data(), num_active(), assistant_weights_.pre_projection, hidden_.data(),
         plan_.hidden_size, threads_);
}

std::span<float> CpuDrafter::Attend(int layer_idx) {
  const LayerPlan& layer = plan_.layers[layer_idx];
  const int donor_idx = assistant_.kv_donors[layer_idx];
  const LayerPlan& donor = target_.plan.layers[donor_idx];
  ProjectQueries(layer, target_.weights.layers[donor_idx].attention.k_norm);
  ForEachHeadGroup(layer, [&](int64_t row, int first_head, int num_heads, int thread_idx) {
    const int kv_head = first_head / layer.heads_per_kv_head();
    const DraftStart& start = starts_[row];
    const SlotTables::Table& table = target_.tables.Of(start.slot, KvGroupOf(layer.kind));
    // The last key is there even where the window ends before it.
    const int32_t first_key =
        layer.window == 0 ? 0 : std::clamp(positions_[row] - layer.window + 1, 0, start.length - 1);
    std::vector<KeySegment> segments;
    AddPageSegments(target_.layout, target_.kv, table, donor, kv_head, first_key, start.length,
                    segments);
    AttendSegments(layer, segments, row, first_head, num_heads, thread_idx);
  });
  ProjectAttended(layer);
  return block_out_;
}

void CpuDrafter::FinishLayer(int layer_idx) {
  const LayerPlan& layer = plan_.layers[layer_idx];
  AddAttended(layer);
  RunMlp(layer);
  const LayerWeights& weights = weights_.layers[layer_idx];
  AddNormed(block_out_, weights.post_mlp_norm, weights.layer_scalar);
}

void CpuDrafter::ProjectOutputs() {
  NormHidden(weights_.final_norm, normed_);
  Linear(normed_.data(), num_active(), assistant_weights_.post_projection, feedback_.data(),
         assistant_.backbone_hidden_size, threads_);
}

std::span<const float> CpuDrafter::Head() {
  logits_.resize(num_active() * plan_.vocab_size);
  if (assistant_.ordered_head) {
    OrderedHead();
  } else {
    DenseHead();
  }
  return logits_;
}

void CpuDrafter::DenseHead() {
  Linear(normed_.data(), num_active(), weights_.head, logits_.data(), plan_.vocab_size, threads_);
}

void CpuDrafter::OrderedHead() {
  const int num_centroids = assistant_.ordered_head->num_centroids;
  const int top_k = assistant_.ordered_head->top_k;
  const int tokens_each = assistant_.tokens_per_centroid();
  centroid_scores_.resize(num_active() * num_centroids);
  Linear(normed_.data(), num_active(), assistant_weights_.centroids, centroid_scores_.data(),
         num_centroids, threads_);
  ForEachActive([&](int64_t row) {
    const float* scores = centroid_scores_.data() + row * num_centroids;
    std::vector<int> best(num_centroids);
    std::iota(best.begin(), best.end(), 0);
    std::partial_sort(best.begin(), best.begin() + top_k, best.end(), [&](int a, int b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
    float* logits = logits_.data() + row * plan_.vocab_size;
    std::fill_n(logits, plan_.vocab_size, -std::numeric_limits<float>::infinity());
    std::vector<float> scored(tokens_each);
    for (int rank = 0; rank < top_k; ++rank) {
      const int first = best[rank] * tokens_each;
      LinearColumns(normed_.data() + row * plan_.hidden_size, /*rows=*/1,
                    weights_.head.Rows(first, tokens_each), 0, tokens_each, scored.data(),
                    tokens_each);
      for (int idx = 0; idx < tokens_each; ++idx) {
        logits[token_ordering_[first + idx]] = scored[idx];
      }
    }
  });
}

void CpuDrafter::Feed(std::span<const int32_t> tokens) {
  CHECK_EQ(static_cast<int64_t>(tokens.size()), num_active());
  std::copy(tokens.begin(), tokens.end(), tokens_.begin());
}

}  // namespace lapidary::cpu
