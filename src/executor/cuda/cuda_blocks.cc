#include "executor/cuda/cuda_blocks.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/attention/kv_entries.h"

namespace lapidary::cuda {

KernelScratch::KernelScratch(const WorkspaceBytes& sizes, const CudaForwardLimits& limits)
    : linear({.batch_invariant = limits.batch_invariant,
              .max_rows = limits.max_rows,
              .dequantised_bytes = limits.dequantised_bytes}),
      partials(sizes.partials, "split attention"),
      counters(sizes.counters, "split attention"),
      linear_bytes_(sizes.linear) {
  LAPIDARY_CUDA_CHECK(cudaMemset(counters.As<void>(), 0, counters.num_bytes()));
}

CudaBlocks::CudaBlocks(const ModelPlan& plan, const KvLayout& layout, const SlotMemory& slots,
                       KernelScratch& scratch, const CudaForwardLimits& limits, int max_rows)
    : plan_(plan), layout_(layout), slots_(slots), scratch_(scratch), limits_(limits) {
  const BlockBytes sizes = PlanBlocks(plan, max_rows);
  constexpr const char* kPurpose = "a step's activations";
  for (DeviceBuffer& hidden : hidden_) hidden = DeviceBuffer(sizes.hidden, kPurpose);
  x_ = DeviceBuffer(sizes.narrow, kPurpose);
  block_out_ = DeviceBuffer(sizes.narrow, kPurpose);
  wide_ = DeviceBuffer(sizes.wide, kPurpose);
  queries_ = DeviceBuffer(sizes.queries, kPurpose);
  attended_ = DeviceBuffer(sizes.attended, kPurpose);

  for (const LayerPlan& layer : plan.layers) {
    const auto it = std::find(rope_plans_.begin(), rope_plans_.end(), layer.rope);
    rope_of_layer_.push_back(static_cast<int>(it - rope_plans_.begin()));
    if (it != rope_plans_.end()) continue;
    rope_plans_.push_back(layer.rope);
    const std::vector<float> frequencies = layer.rope.Frequencies();
    DeviceBuffer& buffer =
        rope_frequencies_.emplace_back(RopeFrequencyBytes(layer.rope), "rotary tables");
    LAPIDARY_CUDA_CHECK(cudaMemcpy(buffer.As<void>(), frequencies.data(), buffer.num_bytes(),
                                   cudaMemcpyHostToDevice));
    rope_tables_.emplace_back(RopeTableBytes(layer.rope, max_rows), "rotary tables");
  }
  CHECK_LE(rope_plans_.size(), kMaxRopeTables);
}

int64_t CudaBlocks::num_block_bytes_for_test() const {
  int64_t total = 0;
  for (const DeviceBuffer* buffer :
       {&hidden_[0], &hidden_[1], &x_, &block_out_, &wide_, &queries_, &attended_}) {
    total += buffer->num_bytes();
  }
  for (const DeviceBuffer& buffer : rope_frequencies_) total += buffer.num_bytes();
  for (const DeviceBuffer& buffer : rope_tables_) total += buffer.num_bytes();
  return total;
}

void CudaBlocks::FillRopeTables(RopeTableFill (&fills)[kMaxRopeTables]) const {
  for (size_t idx = 0; idx < rope_plans_.size(); ++idx) {
    fills[idx] = {rope_frequencies_[idx].As<float>(), rope_plans_[idx].num_rotary_pairs,
                  rope_tables_[idx].As<float2>()};
  }
}

ResidualUpdate CudaBlocks::Update(const ResidualRead& read) const {
  ResidualUpdate update;
  update.hidden = Stream(read.from);
  update.eps = plan_.rms_norm_eps;
  update.pre_norm = read.pre_norm;
  update.scale = read.scale;
  if (read.post_norm != nullptr) {
    update.block_out = block_out_.As<bf16>();
    update.post_norm = read.post_norm;
  }
  update.hidden_out = Stream(read.to);
  return update;
}

ResidentStepCall CudaBlocks::MakeResidentCall(const DeviceStep& step, int row_set) const {
  ResidentStepCall call;
  call.eps = plan_.rms_norm_eps;
  call.hidden_in = Stream(0);
  call.pool = pool_;
  call.page_bytes = layout_.page_bytes;
  for (int group = 0; group < kNumKvGroups; ++group) {
    call.tokens_per_page[group] = layout_.tokens_per_page[group];
    call.page_ids[group] = slots_.table(group);
    call.sequences[group] = step.At<AttentionSequence>(step.offsets.attention[group][row_set]);
  }
  return call;
}

void CudaBlocks::RunLinear(LinearCall call, DependentLaunch kind) {
  call.rows = rows_;
  scratch_.linear.Run(Context(kind), call);
}

DependentLaunch CudaBlocks::LaunchKind(const ProductPhase& phase) const {
  // The blocks of other kernels than the streaming one have a multiprocessor each and cannot be
  // packed.
  const bool spreads = rows_ > kMaxStreamedRows || limits_.batch_invariant;
  return phase.attention && !spreads ? kDependAttentionOutput : kDependLinear;
}

void CudaBlocks::RunProduct(const ProductPhase& phase) {
  const ResidualUpdate residual = Update(phase.residual);
  LinearCall call;
  call.weight = phase.weight;
  call.epilogue = phase.epilogue;
  call.multiplier = phase.multiplier;
  call.multiplier_stride = phase.multiplier_stride;
  if (phase.input == ProductInput::kResidual) call.residual = &residual;
  call.x = (phase.reads_stream()                      ? x_
            : phase.input == ProductInput::kAttention ? attended_
                                                      : wide_)
               .As<bf16>();
  call.y = (phase.adds_to_stream() ? block_out_ : wide_).As<bf16>();
  RunLinear(call, LaunchKind(phase));
}

void CudaBlocks::Attend(const LayerAttention& layer, const AttentionInputs& inputs) {
  QueryEntryCall entries;
  entries.rows = rows_;
  entries.num_heads = layer.num_heads;
  entries.num_kv_heads = layer.owns_kv() ? layer.num_kv_heads : 0;
  entries.head_dim = layer.head_dim;
  entries.k_is_v = layer.k_is_v;
  entries.entry = layer.entry;
  entries.eps = plan_.rms_norm_eps;
  entries.raw = wide_.As<bf16>();
  entries.q_norm = layer.q_norm;
  entries.k_norm = layer.k_norm;
  entries.owner_k_norm = layer.owner_k_norm;
  entries.rope = layer.rope;
  entries.rotary_pairs = layer.rotary_pairs;
  entries.rope_rows = inputs.rope_rows;
  entries.queries = queries_.As<bf16>();
  entries.entries = inputs.own_entries;
  RunQueryEntry(Context(kDependQueryEntry), entries);

  AttentionCall call;
  call.geometry = {layer.num_heads, layer.num_kv_heads, inputs.window};
  call.entry = layer.entry;
  call.queries = queries_.As<bf16>();
  call.out = attended_.As<bf16>();
  call.pool = pool_;
  call.page_bytes = layout_.page_bytes;
  call.layer_offset = layer.layer_offset;
  call.tokens_per_page = layout_.tokens_per_page[layer.group];
  call.new_entries = inputs.new_entries;
  call.page_ids = slots_.table(layer.group);
  call.sequences = inputs.sequences;
  call.items = inputs.items;
  call.num_items = inputs.num_items;
  call.keys_ahead = inputs.keys_ahead;
  call.tile_rows = inputs.tile_rows;
  call.batch_invariant = limits_.batch_invariant;
  call.partials = scratch_.partials.As<float>();
  call.counters = scratch_.counters.As<int32_t>();
  RunAttention(Context(kDependAttention), call);
}

}  // namespace lapidary::cuda
