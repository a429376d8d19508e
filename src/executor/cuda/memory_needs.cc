#include "executor/cuda/memory_needs.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "executor/cuda/step_layout.h"
#include "kv/sequence_pages.h"
#include "ops/cuda/attention/attention_scratch.h"
#include "ops/cuda/linear/linear_scratch.h"
#include "ops/cuda/moe/moe_scratch.h"
#include "ops/cuda/resident/resident_tuning.h"
#include "ops/cuda/rope_table.h"
#include "ops/cuda/sampling/sampling_scratch.h"
#include "ops/cuda/sampling/sampling_types.h"
#include "ops/cuda/slot_state.h"
#include "sampling/sampling_params.h"

namespace lapidary::cuda {
namespace {

constexpr int64_t kBf16 = 2;
constexpr int64_t kF32 = 4;
constexpr int64_t kInt32 = 4;

// What CudaForward keeps of a row beside the blocks' buffers.
void AddActivations(const ModelPlan& plan, int64_t rows, WorkspaceBytes& bytes) {
  if (plan.ple) bytes.ple = rows * plan.num_layers * plan.ple->width * kBf16;
  bytes.gathered = std::max({bytes.blocks.hidden, bytes.blocks.narrow, bytes.ple});
  if (plan.moe) {
    bytes.router_choice = rows * plan.moe->top_k * (kInt32 + kF32);
    bytes.route_counters = kRouteCounters * kInt32;
    bytes.expert_inputs = bytes.blocks.narrow;
    bytes.expert_scratch =
        ExpertScratchBytes({static_cast<int>(rows), plan.hidden_size, plan.moe->expert_width,
                            plan.moe->num_experts, plan.moe->top_k});
  }
}

// New entries: of all owners for small steps; for large ones of one owner at a time, but donors
// keep theirs.
void AddEntries(const ModelPlan& plan, const CudaForwardLimits& limits, WorkspaceBytes& bytes) {
  int64_t shared_row = 0;
  int64_t num_owners = 0;
  for (const LayerPlan& layer : plan.layers) {
    if (!layer.owns_kv()) continue;
    ++num_owners;
    bytes.small_entries += MostRowsStoredAtEnd(plan, limits) * EntryRowBytes(layer);
    if (IsKvDonor(plan, layer)) {
      bytes.large_entries += limits.max_rows * EntryRowBytes(layer);
    } else {
      shared_row = std::max(shared_row, EntryRowBytes(layer));
    }
  }
  bytes.large_entries += limits.max_rows * shared_row;
  bytes.stored_layers = num_owners * kStoredLayerBytes;
}

// What can be said without a device; any that our kernels are for has the shared memory.
bool RunsAsOneKernel(const ModelPlan& plan, const CudaForwardLimits& limits) {
  if (!limits.resident_steps || limits.batch_invariant || plan.hidden_size > kMaxResidentHidden ||
      plan.vocab_size % 2 != 0) {
    return false;
  }
  if (!plan.moe) return true;
  ResidentExchanges exchanges = PlanExchanges(plan);
  exchanges.granule = limits.row_granule;
  return !plan.ple &&
         ResidentExpertsFit(plan.moe->num_experts, plan.moe->top_k, plan.moe->expert_width,
                            plan.hidden_size,
                            ResidentBlocks(limits.num_sms, exchanges.hidden,
                                           exchanges.min_mlp_width, exchanges.granule));
}

// 0: no step is one kernel.
int64_t ResidentBytes(const ModelPlan& plan, const CudaForwardLimits& limits) {
  if (!RunsAsOneKernel(plan, limits)) return 0;
  ResidentExchanges exchanges = PlanExchanges(plan);
  exchanges.granule = limits.row_granule;
  return ResidentScratchLayout(limits.num_sms, exchanges).total +
         ResidentProgramLayout::Total(exchanges.num_phases);
}

}  // namespace

bool IsPleTable(const TensorSpec& spec) {
  return spec.component == TensorComponent::kPerLayerEmbedding;
}

int64_t VectorBytes(const PlannedWeight& vector) {
  constexpr int64_t kAlignment = 16;  // bytes: vectors are read four floats at a time
  return (vector.loaded_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

namespace {

void SetWeights(const WeightPlan& weights, CudaForwardLimits& limits) {
  std::map<std::tuple<int, TensorComponent, int64_t>, int64_t> stacks;
  for (const PlannedWeight& weight : weights.weights()) {
    if (weight.loaded.layout != WeightLayout::kTiles) continue;
    limits.row_granule = kTileRows;
    if (weight.spec.layer < 0) continue;  // The head's weights meet their rows in tiles.
    int64_t& stack = stacks[{weight.spec.layer, weight.spec.component, weight.cols()}];
    stack += weight.rows() * weight.cols() * kBf16;
    limits.dequantised_bytes = std::max(limits.dequantised_bytes, stack);
  }
}

}  // namespace

ExecutorLimits LimitsOf(const CudaExecutorOptions& options_with_padding, int num_sms,
                        const WeightPlan& weights, const std::optional<WeightPlan>& drafter) {
  CudaForwardLimits of_options = ForwardLimits(options_with_padding);
  if (num_sms > 0) of_options.num_sms = num_sms;
  ExecutorLimits limits{.forward = of_options, .drafting = of_options};
  SetWeights(weights, limits.forward);
  if (drafter) SetWeights(*drafter, limits.drafting);
  limits.forward.dequantised_bytes = limits.drafting.dequantised_bytes =
      std::max(limits.forward.dequantised_bytes, limits.drafting.dequantised_bytes);
  return limits;
}

WeightBytes PlanWeights(const WeightPlan& weights, PlePlacement ple_placement) {
  WeightBytes bytes;
  for (const PlannedWeight& weight : weights.weights()) {
    if (!weight.is_matrix()) {
      bytes.vectors += VectorBytes(weight);
    } else if (IsPleTable(weight.spec) && ple_placement == PlePlacement::kHost) {
      bytes.host_table += weight.loaded_bytes;
    } else {
      bytes.matrices += weight.loaded_bytes;
    }
  }
  return bytes;
}

int64_t RopeFrequencyBytes(const RopePlan& rope) { return rope.num_rotary_pairs * kF32; }

int64_t RopeTableBytes(const RopePlan& rope, int64_t max_rows) {
  return max_rows * RopeRowPairs(rope.num_rotary_pairs) * 2 * kF32;
}

int64_t EntryRowBytes(const LayerPlan& owner) {
  return int64_t{owner.num_kv_heads} * owner.kv_entry.entry_len * kBf16;
}

int MostRowsStoredAtEnd(const ModelPlan& plan, const CudaForwardLimits& limits) {
  constexpr int64_t kMostBytes = int64_t{128} << 20;
  int64_t row_bytes = 0;
  for (const LayerPlan& layer : plan.layers) {
    if (layer.owns_kv()) row_bytes += EntryRowBytes(layer);
  }
  const int64_t verified = int64_t{limits.max_sequences} * (1 + limits.max_drafts);
  const int64_t rows = std::clamp<int64_t>(kMostBytes / row_bytes, limits.max_sequences, verified);
  return static_cast<int>(std::min<int64_t>(rows, limits.max_rows));
}

bool IsKvDonor(const ModelPlan& plan, const LayerPlan& owner) {
  return std::any_of(plan.layers.begin(), plan.layers.end(), [&](const LayerPlan& layer) {
    return !layer.owns_kv() && layer.kv_layer == owner.index;
  });
}

SlotBytes PlanSlots(const ModelPlan& plan, const KvLayout& layout, int num_slots) {
  constexpr int64_t kListWords = int64_t{1} << 20;
  constexpr int64_t kLeastReplacedWords = int64_t{1} << 20;
  SlotBytes bytes;
  bytes.states = num_slots * int64_t{sizeof(SlotState)};
  bytes.sampling = num_slots * int64_t{sizeof(SamplingSlot)};
  bytes.lists = kListWords * kInt32;
  bytes.replaced = std::max(kLeastReplacedWords, MaxReplacedWords(plan.vocab_size)) * kInt32;
  bytes.bindings = int64_t{1} << 20;
  for (int group = 0; group < kNumKvGroups; ++group) {
    bytes.tables[group] = int64_t{num_slots} * TableStride(plan, layout, group) * kInt32;
  }
  return bytes;
}

int64_t SlotBytes::total() const {
  return states + sampling + lists + replaced + bindings + tables[kSlidingGroup] +
         tables[kFullGroup];
}

int64_t MaxReplacedWords(int vocab_size) {
  return ReplacedWords(vocab_size, kMaxLogitBiases, vocab_size);
}

int TableStride(const ModelPlan& plan, const KvLayout& layout, int group) {
  return plan.max_context / layout.tokens_per_page[group] + 2;
}

int64_t MaskBytes(int vocab_size, int64_t rows) { return rows * MaskWords(vocab_size) * kInt32; }

int MaxMaskedRows(const CudaForwardLimits& limits) {
  return std::min(limits.max_sequences * (1 + limits.max_drafts), limits.max_rows);
}

int64_t StepArrayBytes(const ModelPlan& plan, const KvLayout& layout,
                       const CudaForwardLimits& limits) {
  // Attention reads an item per block before it knows how many there are.
  constexpr int64_t kReadAhead = int64_t{64} << 10;
  return LayOutStep(MaxStepShape(plan, layout, limits)).total + kReadAhead;
}

int64_t PageCopyBytes(const CudaForwardLimits& limits) {
  // A resumed sequence copies at most a page of each group.
  return int64_t{limits.max_sequences} * kNumKvGroups * int64_t{sizeof(PageCopy)};
}

BlockBytes PlanBlocks(const ModelPlan& plan, int64_t rows) {
  BlockBytes bytes;
  bytes.hidden = rows * plan.hidden_size * kF32;
  bytes.narrow = rows * plan.hidden_size * kBf16;
  int64_t widest = plan.ple ? int64_t{plan.num_layers} * plan.ple->width : 0;
  std::vector<RopePlan> ropes;
  for (const LayerPlan& layer : plan.layers) {
    widest = std::max(widest, int64_t{layer.num_qkv_heads()} * layer.head_dim);
    widest = std::max<int64_t>(widest, layer.mlp_width);
    bytes.queries =
        std::max(bytes.queries, rows * layer.num_heads * layer.kv_entry.key_len * kBf16);
    bytes.attended = std::max(bytes.attended, rows * layer.num_heads * layer.head_dim * kBf16);
    if (std::find(ropes.begin(), ropes.end(), layer.rope) != ropes.end()) continue;
    ropes.push_back(layer.rope);
    bytes.rope += RopeFrequencyBytes(layer.rope) + RopeTableBytes(layer.rope, rows);
  }
  bytes.wide = rows * widest * kBf16;
  return bytes;
}

ResidentExchanges PlanExchanges(const ModelPlan& plan) {
  ResidentExchanges exchanges;
  exchanges.hidden = plan.hidden_size;
  exchanges.min_mlp_width = plan.layers[0].mlp_width;
  if (plan.ple) exchanges.ple_width = plan.ple->width;
  if (plan.moe) {
    exchanges.num_experts = plan.moe->num_experts;
    exchanges.expert_values = plan.moe->top_k * plan.moe->expert_width;
  }
  for (const LayerPlan& layer : plan.layers) {
    exchanges.max_qkv_rows =
        std::max(exchanges.max_qkv_rows, layer.num_qkv_heads() * layer.head_dim);
    exchanges.max_attended = std::max(exchanges.max_attended, layer.num_heads * layer.head_dim);
    exchanges.max_mlp_width = std::max(exchanges.max_mlp_width, layer.mlp_width);
    exchanges.min_mlp_width = std::min(exchanges.min_mlp_width, layer.mlp_width);
    exchanges.entry_values.push_back(layer.num_kv_heads * layer.kv_entry.entry_len);
    // Two products of attention and MLP each, two of per-layer embeddings and of experts; the head
    // is the last.
    exchanges.num_phases += 4 + (plan.ple ? 2 : 0) + (layer.has_moe ? 2 : 0);
  }
  ++exchanges.num_phases;
  return exchanges;
}

WorkspaceBytes PlanWorkspace(const ModelPlan& plan, const KvLayout& layout,
                             const CudaForwardLimits& limits) {
  WorkspaceBytes bytes;
  bytes.blocks = PlanBlocks(plan, limits.max_rows);
  AddActivations(plan, limits.max_rows, bytes);
  AddEntries(plan, limits, bytes);
  bytes.logits = int64_t{limits.max_logit_rows} * plan.vocab_size * kF32;
  bytes.sampled = limits.max_rows * int64_t{sizeof(SampledRow)};
  bytes.masks = MaskBytes(plan.vocab_size, MaxMaskedRows(limits));
  bytes.sampling_scratch = SamplingScratchBytes(limits.max_logit_rows, plan.vocab_size);
  bytes.partials =
      AttentionPartialBytes(limits.num_sms, limits.max_partials, limits.batch_invariant);
  bytes.counters = int64_t{limits.max_partials} * kInt32;
  if (plan.moe && limits.counts_experts) {
    bytes.expert_counts = int64_t{plan.num_layers} * plan.moe->num_experts * sizeof(uint64_t);
  }
  bytes.linear =
      LinearScratchBytes(limits.max_rows, limits.batch_invariant) + limits.dequantised_bytes;
  bytes.resident = ResidentBytes(plan, limits);
  // One slot more than sequences: that of padding rows.
  bytes.slots = PlanSlots(plan, layout, limits.max_sequences + 1).total();
  bytes.step_arrays = StepArrayBytes(plan, layout, limits);
  bytes.page_copies = PageCopyBytes(limits);
  return bytes;
}

int64_t WorkspaceBytes::total() const {
  return blocks.total() + 2 * stored_layers + ple + gathered + logits + sampled + sampling_scratch +
         masks + partials + counters + router_choice + route_counters + expert_inputs +
         expert_scratch + expert_counts + small_entries + large_entries + linear + resident +
         slots + step_arrays + page_copies;
}

DrafterBytes::HeadPlaces DrafterBytes::PlaceHead(const AssistantPlan& plan, int64_t rows) {
  const OrderedHeadPlan head = plan.ordered_head.value_or(OrderedHeadPlan{});
  HeadPlaces places;
  places.counters = places.winners + rows * 8;
  places.chosen = places.counters + rows * kInt32;
  places.scores = places.chosen + rows * head.top_k * kInt32;
  places.scores = (places.scores + 15) / 16 * 16;
  places.end = places.scores + rows * head.num_centroids * kF32;
  return places;
}

DrafterBytes PlanDrafter(const AssistantPlan& plan, const CudaForwardLimits& limits) {
  const int64_t rounds = limits.max_sequences;
  DrafterBytes bytes;
  bytes.blocks = PlanBlocks(plan.decoder, rounds);
  // One slot more than sequences: that of padding rows.
  bytes.hidden_rows = (rounds + 1) * plan.backbone_hidden_size * kBf16;
  bytes.inputs = rounds * 2 * plan.backbone_hidden_size * kBf16;
  bytes.feedback = rounds * plan.backbone_hidden_size * kBf16;
  if (plan.ordered_head) bytes.token_ordering = plan.decoder.vocab_size * kInt32;
  bytes.head = DrafterBytes::PlaceHead(plan, rounds).end;
  bytes.simulated_rates = kMaxDrafts * kF32;
  bytes.resident = ResidentBytes(plan.decoder, limits);
  return bytes;
}

}  // namespace lapidary::cuda
