// What a CudaForward holds on the device: every buffer, allocated once, and tables that no step
// changes.
#include <algorithm>

#include "base/check.h"
#include "executor/cuda/cuda_forward.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/per_layer_block.h"

namespace lapidary::cuda {
namespace {

int64_t OwnerRowBytes(const LayerPlan& owner) {
  return int64_t{owner.num_kv_heads} * owner.kv_entry.entry_len *
         static_cast<int64_t>(sizeof(bf16));
}

bool IsDonor(const ModelPlan& plan, int owner) {
  return std::any_of(plan.layers.begin(), plan.layers.end(), [&](const LayerPlan& layer) {
    return !layer.owns_kv() && layer.kv_layer == owner;
  });
}

}  // namespace

// Bytes of every buffer, from the plan and the limits alone.
struct CudaForward::Sizes {
  int64_t hidden = 0;
  int64_t narrow = 0;
  int64_t wide = 0;
  int64_t queries = 0;
  int64_t attended = 0;
  int64_t ple = 0;
  int64_t gathered = 0;
  int64_t logits = 0;
  int64_t sampled = 0;
  int64_t sampling_scratch = 0;
  int64_t partials = 0;
  int64_t router_choice = 0;
  int64_t expert_scratch = 0;
  int64_t small_entries = 0;
  int64_t large_entries = 0;

  Sizes(const DeviceInfo& device, const ModelPlan& plan, const CudaForwardLimits& limits) {
    const int64_t rows = limits.max_rows;
    constexpr int64_t kHalf = sizeof(bf16);
    hidden = rows * plan.hidden_size * static_cast<int64_t>(sizeof(float));
    narrow = rows * plan.hidden_size * kHalf;
    int64_t widest = 0;
    int64_t shared_entries = 0;
    for (const LayerPlan& layer : plan.layers) {
      widest = std::max(widest, int64_t{layer.num_qkv_heads()} * layer.head_dim);
      widest = std::max<int64_t>(widest, layer.mlp_width);
      queries = std::max(queries, rows * layer.num_heads * layer.kv_entry.key_len * kHalf);
      attended = std::max(attended, rows * layer.num_heads * layer.head_dim * kHalf);
      if (!layer.owns_kv()) continue;
      small_entries += limits.max_sequences * OwnerRowBytes(layer);
      if (IsDonor(plan, layer.index)) {
        large_entries += rows * OwnerRowBytes(layer);
      } else {
        shared_entries = std::max(shared_entries, rows * OwnerRowBytes(layer));
      }
    }
    large_entries += shared_entries;
    if (plan.ple) {
      const int64_t columns = int64_t{plan.num_layers} * plan.ple->width;
      widest = std::max(widest, columns);
      ple = rows * columns * kHalf;
    }
    wide = rows * widest * kHalf;
    gathered = std::max({hidden, narrow, ple});
    logits = int64_t{limits.max_logit_rows} * plan.vocab_size * static_cast<int64_t>(sizeof(float));
    sampled = rows * static_cast<int64_t>(sizeof(SampledRow));
    sampling_scratch = SamplingScratchBytes(limits.max_logit_rows, plan.vocab_size);
    partials = AttentionPartialBytes(device, limits.max_partials, limits.batch_invariant);
    if (plan.moe) {
      router_choice = rows * plan.moe->top_k * 8;
      expert_scratch =
          ExpertScratchBytes({limits.max_rows, plan.hidden_size, plan.moe->expert_width,
                              plan.moe->num_experts, plan.moe->top_k});
    }
  }
};

CudaForward::CudaForward(const DeviceInfo& device, const ModelPlan& plan,
                         const DeviceWeights& weights, const KvLayout& layout,
                         const SlotMemory& slots, const CudaForwardLimits& limits)
    : plan_(plan),
      weights_(weights),
      layout_(layout),
      slots_(slots),
      limits_(limits),
      linear_({.batch_invariant = limits.batch_invariant, .max_rows = limits.max_rows}) {
  const Sizes sizes(device, plan, limits);
  constexpr const char* kPurpose = "a step's activations";
  for (DeviceBuffer& hidden : hidden_) hidden = DeviceBuffer(sizes.hidden, kPurpose);
  x_ = DeviceBuffer(sizes.narrow, kPurpose);
  block_out_ = DeviceBuffer(sizes.narrow, kPurpose);
  wide_ = DeviceBuffer(sizes.wide, kPurpose);
  queries_ = DeviceBuffer(sizes.queries, kPurpose);
  attended_ = DeviceBuffer(sizes.attended, kPurpose);
  ple_inputs_ = DeviceBuffer(sizes.ple, kPurpose);
  gathered_ = DeviceBuffer(sizes.gathered, kPurpose);
  logits_ = DeviceBuffer(sizes.logits, "the logits");
  sampled_ = DeviceBuffer(sizes.sampled, "the sampler");
  sampling_scratch_ = DeviceBuffer(sizes.sampling_scratch, "the sampler");
  partials_ = DeviceBuffer(sizes.partials, "split attention");
  counters_ = DeviceBuffer(limits.max_partials * sizeof(int32_t), "split attention");
  LAPIDARY_CUDA_CHECK(cudaMemset(counters_.As<void>(), 0, counters_.num_bytes()));
  router_choice_ = DeviceBuffer(sizes.router_choice, "the experts");
  expert_scratch_ = DeviceBuffer(sizes.expert_scratch, "the experts");
  small_entries_ = DeviceBuffer(sizes.small_entries, "new KV entries");
  large_entries_ = DeviceBuffer(sizes.large_entries, "new KV entries");

  for (const LayerPlan& layer : plan.layers) {
    const auto it = std::find(rope_plans_.begin(), rope_plans_.end(), layer.rope);
    rope_of_layer_.push_back(static_cast<int>(it - rope_plans_.begin()));
    if (it != rope_plans_.end()) continue;
    rope_plans_.push_back(layer.rope);
    const std::vector<float> frequencies = layer.rope.Frequencies();
    DeviceBuffer& buffer =
        rope_frequencies_.emplace_back(frequencies.size() * sizeof(float), "rotary tables");
    LAPIDARY_CUDA_CHECK(cudaMemcpy(buffer.As<void>(), frequencies.data(), buffer.num_bytes(),
                                   cudaMemcpyHostToDevice));
    const int64_t row_pairs = RopeRowPairs(layer.rope.num_rotary_pairs);
    rope_tables_.emplace_back(limits.max_rows * row_pairs * sizeof(float2), "rotary tables");
  }
  CHECK_LE(rope_plans_.size(), kMaxRopeTables);

  std::vector<StoredLayer> small;
  std::vector<StoredLayer> large;
  int64_t small_end = 0;
  int64_t large_end = 0;
  int64_t shared_rows = 0;
  for (const LayerPlan& layer : plan.layers) {
    if (layer.owns_kv() && !IsDonor(plan, layer.index)) {
      shared_rows = std::max(shared_rows, OwnerRowBytes(layer));
    }
  }
  large_end = limits.max_rows * shared_rows;
  for (const LayerPlan& layer : plan.layers) {
    small_offset_.push_back(small_end);
    large_offset_.push_back(0);
    owner_index_.push_back(num_owners_);
    if (!layer.owns_kv()) continue;
    if (IsDonor(plan, layer.index)) {
      large_offset_.back() = large_end;
      large_end += limits.max_rows * OwnerRowBytes(layer);
    }
    const int group = KvGroupOf(layer.kind);
    StoredLayer stored{.entries = small_entries_.As<bf16>(small_end),
                       .layer_offset = layout.layer_offset[layer.index],
                       .num_kv_heads = layer.num_kv_heads,
                       .entry_len = layer.kv_entry.entry_len,
                       .group = group,
                       .tokens_per_page = layout.tokens_per_page[group]};
    small.push_back(stored);
    stored.entries = large_entries_.As<bf16>(large_offset_.back());
    large.push_back(stored);
    small_end += limits.max_sequences * OwnerRowBytes(layer);
    max_kv_heads_ = std::max(max_kv_heads_, layer.num_kv_heads);
    ++num_owners_;
  }
  const auto upload = [](const std::vector<StoredLayer>& layers) {
    DeviceBuffer buffer(static_cast<int64_t>(layers.size() * sizeof(StoredLayer)),
                        "new KV entries");
    LAPIDARY_CUDA_CHECK(
        cudaMemcpy(buffer.As<void>(), layers.data(), buffer.num_bytes(), cudaMemcpyHostToDevice));
    return buffer;
  };
  small_stored_ = upload(small);
  large_stored_ = upload(large);
  // These kernels' results depend on their row alone, but are not the bits of the others.
  has_per_layer_block_ = plan.ple && !limits.batch_invariant &&
                         PerLayerBlockSupports(device, plan.hidden_size, plan.ple->width);
  if (limits.resident_steps && !limits.batch_invariant && !plan.moe) {
    std::vector<const float2*> rope;
    for (const int table : rope_of_layer_) rope.push_back(rope_tables_[table].As<float2>());
    resident_ = ResidentSteps::Create(
        device, DescribeResidentModel(plan, weights, layout, rope, ple_inputs_.As<bf16>()));
  }
}

}  // namespace lapidary::cuda
