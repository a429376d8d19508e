// What a CudaForward holds on the device: every buffer, allocated once, and tables that no step
// changes.
#include <algorithm>

#include "base/check.h"
#include "executor/cuda/cuda_forward.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/linear/linear_large.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/per_layer_block.h"

namespace lapidary::cuda {

CudaForward::CudaForward(const DeviceInfo& device, const ModelPlan& plan,
                         const DeviceWeights& weights, const KvLayout& layout,
                         const SlotMemory& slots, KernelScratch& scratch,
                         const CudaForwardLimits& limits)
    : CudaBlocks(plan, layout, slots, scratch, limits, limits.max_rows),
      weights_(weights),
      most_rows_stored_at_end_(MostRowsStoredAtEnd(plan, limits)) {
  const WorkspaceBytes sizes = PlanWorkspace(plan, layout, limits);
  constexpr const char* kPurpose = "a step's activations";
  ple_inputs_ = DeviceBuffer(sizes.ple, kPurpose);
  gathered_ = DeviceBuffer(sizes.gathered, kPurpose);
  logits_ = DeviceBuffer(sizes.logits, "the logits");
  sampled_ = DeviceBuffer(sizes.sampled, "the sampler");
  sampling_scratch_ = DeviceBuffer(sizes.sampling_scratch, "the sampler");
  router_choice_ = DeviceBuffer(sizes.router_choice, "the experts");
  route_counters_ = DeviceBuffer(sizes.route_counters, "the experts");
  expert_inputs_ = DeviceBuffer(sizes.expert_inputs, "the experts");
  expert_scratch_ = DeviceBuffer(sizes.expert_scratch, "the experts");
  expert_counts_ = DeviceBuffer(sizes.expert_counts, "the experts");
  for (const DeviceBuffer* zeros : {&route_counters_, &expert_counts_}) {
    if (zeros->num_bytes() == 0) continue;
    LAPIDARY_CUDA_CHECK(cudaMemset(zeros->As<void>(), 0, zeros->num_bytes()));
  }
  small_entries_ = DeviceBuffer(sizes.small_entries, "new KV entries");
  large_entries_ = DeviceBuffer(sizes.large_entries, "new KV entries");

  std::vector<StoredLayer> small;
  std::vector<StoredLayer> large;
  int64_t small_end = 0;
  int64_t large_end = 0;
  int64_t shared_rows = 0;
  for (const LayerPlan& layer : plan.layers) {
    if (layer.owns_kv() && !IsKvDonor(plan, layer)) {
      shared_rows = std::max(shared_rows, EntryRowBytes(layer));
    }
  }
  large_end = limits.max_rows * shared_rows;
  for (const LayerPlan& layer : plan.layers) {
    small_offset_.push_back(small_end);
    large_offset_.push_back(0);
    owner_index_.push_back(num_owners_);
    if (!layer.owns_kv()) continue;
    if (IsKvDonor(plan, layer)) {
      large_offset_.back() = large_end;
      large_end += limits.max_rows * EntryRowBytes(layer);
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
    small_end += most_rows_stored_at_end_ * EntryRowBytes(layer);
    max_kv_heads_ = std::max(max_kv_heads_, layer.num_kv_heads);
    ++num_owners_;
  }
  static_assert(sizeof(StoredLayer) == kStoredLayerBytes);
  const auto upload = [&](const std::vector<StoredLayer>& layers) {
    DeviceBuffer buffer(sizes.stored_layers, "new KV entries");
    LAPIDARY_CUDA_CHECK(
        cudaMemcpy(buffer.As<void>(), layers.data(), buffer.num_bytes(), cudaMemcpyHostToDevice));
    return buffer;
  };
  small_stored_ = upload(small);
  large_stored_ = upload(large);
  // These kernels' results depend on their row alone, but are not the bits of the others.
  has_per_layer_block_ = plan.ple && !limits.batch_invariant &&
                         PerLayerBlockSupports(device, plan.hidden_size, plan.ple->width);
  WritePrograms();
  // The head is a step's last product. Were its kernel loaded when a step first has so many
  // outputs, the answers of the step before would wait for nearly all of it.
  const auto& head = std::get<ProductPhase>(programs_.front().back());
  scratch_.linear.Load(head.weight, head.epilogue, limits_.max_logit_rows);
  if (!limits.batch_invariant) LoadLarge(device);
  if (limits.resident_steps && !limits.batch_invariant) {
    resident_ = ResidentSteps::Create(device, programs_[ProgramIndex(false, false, false)]);
  }
}

void CudaForward::WritePrograms() {
  DecoderInputs inputs;
  inputs.layers = InputsFromOwnKv(plan_, weights_, layout_);
  for (const LayerPlan& layer : plan_.layers) inputs.layers[layer.index].rope = RopeOf(layer.index);
  inputs.ple_inputs = ple_inputs_.As<bf16>();
  for (const bool drops_rows : {false, true}) {
    for (const bool fuses : {false, true}) {
      for (const bool fuses_outputs : {false, true}) {
        programs_[ProgramIndex(drops_rows, fuses, fuses_outputs)] =
            MakeDecoderProgram(plan_, weights_, inputs,
                               {.skip_unneeded_rows = limits_.skip_unneeded_rows,
                                .drops_rows = drops_rows,
                                .fuses_per_layer = fuses,
                                .fuses_per_layer_of_outputs = fuses_outputs});
      }
    }
  }
}

int64_t CudaForward::num_bytes_for_test() const {
  int64_t total = num_block_bytes_for_test() + (resident_ ? resident_->num_bytes_for_test() : 0);
  for (const DeviceBuffer* buffer :
       {&ple_inputs_, &gathered_, &logits_, &sampled_, &sampling_scratch_, &router_choice_,
        &route_counters_, &expert_inputs_, &expert_scratch_, &expert_counts_, &small_entries_,
        &large_entries_, &small_stored_, &large_stored_}) {
    total += buffer->num_bytes();
  }
  return total;
}

}  // namespace lapidary::cuda
