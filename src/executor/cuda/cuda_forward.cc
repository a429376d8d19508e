#include "executor/cuda/cuda_forward.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/per_layer_block.h"

namespace lapidary::cuda {

bool CudaForward::IsResident(const DeviceStep& step) const {
  return resident_ != nullptr && step.shape.rows == 1 && step.shape.outputs == 1;
}

void CudaForward::Run(const LaunchContext& context, const DeviceStep& step,
                      bool skip_unneeded_rows) {
  CHECK_LE(step.shape.rows, limits_.max_rows);
  context_ = context;
  step_ = step;
  row_set_ = kAllRows;
  rows_ = step.shape.rows;
  current_ = 0;
  pending_ = {};
  x_norm_ = nullptr;
  Prepare();
  if (IsResident(step)) {
    RunResident();
  } else {
    RunDecoder(plan_, skip_unneeded_rows, *this);
  }
  Accept();
}

void CudaForward::Prepare() {
  const StepOffsets& at = step_.offsets;
  PrepareStepCall call;
  slots_.Fill(call);
  call.rows = step_.shape.rows;
  call.sequences = step_.shape.sequences;
  call.sampled = step_.shape.sampled;
  call.num_row_sets = step_.shape.num_row_sets();
  call.vocab_size = plan_.vocab_size;
  call.counts = step_.At<PlannedCounts>(at.counts);
  call.planned = step_.At<PlannedSequence>(at.planned);
  call.planned_ids = step_.At<int32_t>(at.planned_ids);
  call.sequence_of = step_.At<int32_t>(at.sequence_of);
  call.table_entries = step_.At<PlannedTableEntry>(at.table_entries);
  call.planned_items = step_.At<AttentionItem>(at.planned_items);
  call.sampling = step_.At<SamplingRow>(at.sampling);
  call.token_ids = step_.At<int32_t>(at.token_ids);
  call.positions = step_.At<int32_t>(at.positions);
  for (int group = 0; group < kNumKvGroups; ++group) {
    call.tokens_per_page[group] = layout_.tokens_per_page[group];
    call.window[group] = plan_.kv_groups[group].window;
    call.write_pages[group] = step_.At<int32_t>(at.write_pages[group]);
    call.write_slots[group] = step_.At<int32_t>(at.write_slots[group]);
    for (int row_set = 0; row_set < kNumRowSets; ++row_set) {
      call.attention[group][row_set] = step_.At<AttentionSequence>(at.attention[group][row_set]);
      call.items[group][row_set] = step_.At<AttentionItem>(at.items[group][row_set]);
      call.num_items[group][row_set] = step_.At<int32_t>(at.num_items[group][row_set]);
    }
  }
  RunPrepareStep(Context(kDependOther), call);
}

void CudaForward::RunResident() {
  Embed();
  if (plan_.ple) MakePerLayerInputs();
  ResidentStepCall call;
  call.eps = plan_.rms_norm_eps;
  call.softcap = plan_.logit_softcap;
  call.hidden_in = hidden_[current_].As<float>();
  call.logits = logits_.As<float>();
  call.pool = pool_;
  call.page_bytes = layout_.page_bytes;
  for (int group = 0; group < kNumKvGroups; ++group) {
    call.tokens_per_page[group] = layout_.tokens_per_page[group];
    call.page_ids[group] = slots_.table(group);
    call.sequences[group] = step_.At<AttentionSequence>(step_.offsets.attention[group][kAllRows]);
    call.write_pages[group] = step_.At<int32_t>(step_.offsets.write_pages[group]);
    call.write_slots[group] = step_.At<int32_t>(step_.offsets.write_slots[group]);
  }
  resident_->Run(Context(kDependOther), call);
  FinishLogits(0, 1);
}

bf16* CudaForward::NewEntries(const LayerPlan& owner) const {
  return stores_at_end() ? small_entries_.As<bf16>(small_offset_[owner.index])
                         : large_entries_.As<bf16>(large_offset_[owner.index]);
}

std::optional<ResidualUpdate> CudaForward::TakeResidual(const float* pre_norm) {
  const float* const x_norm = std::exchange(x_norm_, nullptr);
  if (x_norm != nullptr && x_norm == pre_norm) return std::nullopt;
  ResidualUpdate update;
  update.hidden = hidden_[current_].As<float>();
  update.eps = plan_.rms_norm_eps;
  update.pre_norm = pre_norm;
  update.scale = pending_.scale;
  if (pending_.post_norm != nullptr) {
    update.block_out = block_out_.As<bf16>();
    update.post_norm = pending_.post_norm;
  }
  current_ = 1 - current_;
  update.hidden_out = hidden_[current_].As<float>();
  pending_ = {};
  return update;
}

void CudaForward::RunLinear(LinearCall call, DependentLaunch kind) {
  call.rows = rows_;
  linear_.Run(Context(kind), call);
}

void CudaForward::RunLinear(LinearCall call, const std::optional<ResidualUpdate>& residual,
                            DependentLaunch kind) {
  call.x = x_.As<bf16>();
  call.residual = residual ? &*residual : nullptr;
  RunLinear(call, kind);
}

void CudaForward::Embed() {
  EmbedCall call;
  call.rows = rows_;
  call.hidden = plan_.hidden_size;
  call.token_ids = step_.At<int32_t>(step_.offsets.token_ids);
  call.positions = step_.At<int32_t>(step_.offsets.positions);
  call.embedding = weights_.embedding;
  call.scale = plan_.embedding_scale;
  call.hidden_out = hidden_[current_].As<float>();
  call.x = plan_.ple ? x_.As<bf16>() : nullptr;
  for (size_t idx = 0; idx < rope_plans_.size(); ++idx) {
    call.rope[idx] = {rope_frequencies_[idx].As<float>(), rope_plans_[idx].num_rotary_pairs,
                      rope_tables_[idx].As<float2>()};
  }
  RunEmbed(Context(kDependOther), call);
}

void CudaForward::MakePerLayerInputs() {
  LinearCall projection;
  projection.weight = weights_.ple_projection;
  projection.x = x_.As<bf16>();
  projection.y = wide_.As<bf16>();
  RunLinear(projection, kDependOther);

  PerLayerInputsCall call;
  call.rows = rows_;
  call.num_layers = plan_.num_layers;
  call.width = plan_.ple->width;
  call.hidden = plan_.hidden_size;
  call.eps = plan_.rms_norm_eps;
  call.token_ids = step_.At<int32_t>(step_.offsets.token_ids);
  call.table = weights_.ple_table;
  call.projected = wide_.As<bf16>();
  call.norm = weights_.ple_projection_norm;
  call.out = ple_inputs_.As<bf16>();
  RunPerLayerInputs(Context(kDependOther), call);
}

void CudaForward::KeepOutputRows() {
  row_set_ = kOutputRows;
  if (step_.shape.outputs == rows_) return;
  const int outputs = step_.shape.outputs;
  const auto gather = [&](DeviceBuffer& buffer, int64_t row_bytes) {
    RunGatherRows(Context(kDependOther), buffer.As<void>(),
                  step_.At<int32_t>(step_.offsets.output_rows), outputs, row_bytes,
                  gathered_.As<void>());
    LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(buffer.As<void>(), gathered_.As<void>(),
                                        outputs * row_bytes, cudaMemcpyDeviceToDevice,
                                        context_.stream));
  };
  rows_ = outputs;
  x_norm_ = nullptr;  // x_ has all rows.
  if (outputs == 0) return;
  gather(hidden_[current_], int64_t{plan_.hidden_size} * sizeof(float));
  if (pending_.post_norm != nullptr) gather(block_out_, int64_t{plan_.hidden_size} * sizeof(bf16));
  if (plan_.ple) {
    gather(ple_inputs_, int64_t{plan_.num_layers} * plan_.ple->width * sizeof(bf16));
  }
}

void CudaForward::ProjectAttention(const LayerPlan& layer) {
  if (rows_ == 0) return;
  const auto& weights = weights_.layers[layer.index];
  const auto residual = TakeResidual(weights.input_norm);
  LinearCall projection;
  projection.weight = weights.attention.qkv_proj;
  projection.y = wide_.As<bf16>();
  RunLinear(projection, residual, kDependLinear);

  QueryEntryCall call;
  call.rows = rows_;
  call.num_heads = layer.num_heads;
  call.num_kv_heads = layer.owns_kv() ? layer.num_kv_heads : 0;
  call.head_dim = layer.head_dim;
  call.k_is_v = layer.k_is_v;
  call.entry = layer.kv_entry;
  call.eps = plan_.rms_norm_eps;
  call.raw = wide_.As<bf16>();
  call.q_norm = weights.attention.q_norm;
  call.k_norm = weights.attention.k_norm;
  call.owner_k_norm = weights_.layers[layer.kv_layer].attention.k_norm;
  call.rope = rope_tables_[rope_of_layer_[layer.index]].As<float2>();
  call.rotary_pairs = layer.rope.num_rotary_pairs;
  if (row_set_ == kOutputRows) call.rope_rows = step_.At<int32_t>(step_.offsets.output_rows);
  call.queries = queries_.As<bf16>();
  if (layer.owns_kv()) {
    CHECK_EQ(rows_, step_.shape.rows);  // Owners of KV see every row.
    call.entries = NewEntries(layer);
  }
  RunQueryEntry(Context(kDependQueryEntry), call);
}

void CudaForward::Attend(const LayerPlan& layer) {
  if (rows_ == 0) return;
  const LayerPlan& owner = plan_.layers[layer.kv_layer];
  const int group = KvGroupOf(layer.kind);
  AttentionCall call;
  call.geometry = {layer.num_heads, layer.num_kv_heads, layer.window};
  call.entry = layer.kv_entry;
  call.queries = queries_.As<bf16>();
  call.out = attended_.As<bf16>();
  call.pool = pool_;
  call.page_bytes = layout_.page_bytes;
  call.layer_offset = layout_.layer_offset[owner.index];
  call.tokens_per_page = layout_.tokens_per_page[group];
  call.new_entries = NewEntries(owner);
  call.page_ids = slots_.table(group);
  call.sequences = step_.At<AttentionSequence>(step_.offsets.attention[group][row_set_]);
  call.items = step_.At<AttentionItem>(step_.offsets.items[group][row_set_]);
  call.num_items = step_.At<int32_t>(step_.offsets.num_items[group][row_set_]);
  call.tile_rows = step_.is_decode ? DecodeTileRows(layer.num_kv_heads) : kMixedTileRows;
  call.batch_invariant = limits_.batch_invariant;
  call.partials = partials_.As<float>();
  call.counters = counters_.As<int32_t>();
  RunAttention(Context(kDependAttention), call);
}

void CudaForward::AttentionOutput(const LayerPlan& layer) {
  if (rows_ == 0) return;
  const auto& weights = weights_.layers[layer.index];
  LinearCall call;
  call.weight = weights.attention.o_proj;
  call.x = attended_.As<bf16>();
  call.y = block_out_.As<bf16>();
  // The blocks of other kernels than the streaming one have a multiprocessor each and cannot be
  // packed.
  const bool spreads = rows_ > kMaxStreamedRows || limits_.batch_invariant;
  RunLinear(call, spreads ? kDependLinear : kDependAttentionOutput);
  pending_ = {weights.post_attention_norm, 1.0f};
}

void CudaForward::DenseMlp(const LayerPlan& layer) {
  if (rows_ == 0) return;
  const auto& weights = weights_.layers[layer.index];
  const auto residual = TakeResidual(weights.pre_mlp_norm);
  LinearCall gate_up;
  gate_up.weight = weights.mlp.gate_up_proj;
  gate_up.epilogue = Epilogue::kGatedGelu;
  gate_up.y = wide_.As<bf16>();
  RunLinear(gate_up, residual, kDependLinear);
  LinearCall down;
  down.weight = weights.mlp.down_proj;
  down.x = wide_.As<bf16>();
  down.y = block_out_.As<bf16>();
  RunLinear(down, kDependLinear);
}

void CudaForward::Experts(const LayerPlan& layer) {
  if (rows_ == 0) return;
  const auto& weights = weights_.layers[layer.index].moe;
  const MoePlan& moe = *plan_.moe;
  RouteCall route;
  route.shape = {rows_, plan_.hidden_size, moe.expert_width, moe.num_experts, moe.top_k};
  route.eps = plan_.rms_norm_eps;
  route.h = hidden_[current_].As<float>();  // DenseMlp brought it up to date
  route.router_scale = weights.router_scale;
  route.router_weight = weights.router_proj;
  route.per_expert_scale = weights.per_expert_scale;
  route.pre_norm = weights.pre_norm;
  route.experts = router_choice_.As<int32_t>();
  route.weights = router_choice_.As<float>(int64_t{limits_.max_rows} * moe.top_k * 4);
  route.x = x_.As<bf16>();
  route.scratch = expert_scratch_.As<void>();
  RunRoute(Context(kDependOther), route);

  ExpertsCall experts;
  experts.shape = route.shape;
  experts.eps = plan_.rms_norm_eps;
  experts.weights = route.weights;
  experts.x = x_.As<bf16>();
  experts.gate_up = weights.gate_up_proj;
  experts.down = weights.down_proj;
  experts.post_dense_norm = weights.post_dense_norm;
  experts.post_expert_norm = weights.post_expert_norm;
  experts.block_out = block_out_.As<bf16>();
  experts.scratch = expert_scratch_.As<void>();
  RunExperts(Context(kDependOther), experts);
}

void CudaForward::MlpOutput(const LayerPlan& layer) {
  const auto& weights = weights_.layers[layer.index];
  pending_ = {weights.post_mlp_norm, plan_.ple ? 1.0f : weights.layer_scalar};
}

bool CudaForward::FusesPerLayerBlock() const {
  // A block of the kernel loads a sixteenth of the matrices: of a wide model, more than few rows
  // are worth waiting for.
  constexpr int kNarrow = 2048;
  return has_per_layer_block_ && rows_ <= kMaxPerLayerBlockRows &&
         (rows_ > kMaxStreamedRows || plan_.hidden_size <= kNarrow);
}

void CudaForward::PerLayerGate(const LayerPlan& layer) {
  if (rows_ == 0) return;
  const auto& weights = weights_.layers[layer.index];
  const int width = plan_.ple->width;
  const bf16* const multiplier = ple_inputs_.As<bf16>() + int64_t{layer.index} * width;
  const int64_t multiplier_stride = int64_t{plan_.num_layers} * width;
  const auto residual = TakeResidual(nullptr);
  CHECK(residual.has_value());
  if (FusesPerLayerBlock()) {
    const bool is_last = layer.index + 1 == plan_.num_layers;
    PerLayerBlockCall call;
    call.rows = rows_;
    call.hidden_size = plan_.hidden_size;
    call.before = *residual;
    call.gate = weights.ple.gate;
    call.projection = weights.ple.projection;
    call.multiplier = multiplier;
    call.multiplier_stride = multiplier_stride;
    call.after.post_norm = weights.ple.post_norm;
    call.after.scale = weights.layer_scalar;
    call.after.hidden_out = residual->hidden_out;
    call.after.pre_norm =
        is_last ? weights_.final_norm : weights_.layers[layer.index + 1].input_norm;
    call.after.eps = plan_.rms_norm_eps;
    call.x = x_.As<bf16>();
    RunPerLayerBlock(Context(kDependLinear), call);
    x_norm_ = call.after.pre_norm;
    return;
  }
  LinearCall gate;
  gate.weight = weights.ple.gate;
  gate.epilogue = Epilogue::kGeluMul;
  gate.multiplier = multiplier;
  gate.multiplier_stride = multiplier_stride;
  gate.y = wide_.As<bf16>();
  RunLinear(gate, residual, kDependLinear);
  LinearCall projection;
  projection.weight = weights.ple.projection;
  projection.x = wide_.As<bf16>();
  projection.y = block_out_.As<bf16>();
  RunLinear(projection, kDependLinear);
  pending_ = {weights.ple.post_norm, weights.layer_scalar};
}

void CudaForward::StoreEntries(const StoredLayer* layers, int num_layers, int max_kv_heads) {
  StoreEntriesCall call;
  call.rows = step_.shape.rows;
  call.num_layers = num_layers;
  call.max_kv_heads = max_kv_heads;
  call.layers = layers;
  for (int group = 0; group < kNumKvGroups; ++group) {
    call.pages[group] = step_.At<int32_t>(step_.offsets.write_pages[group]);
    call.slots[group] = step_.At<int32_t>(step_.offsets.write_slots[group]);
  }
  call.pool = pool_;
  call.page_bytes = layout_.page_bytes;
  RunStoreEntries(Context(kDependOther), call);
}

void CudaForward::StoreKv(const LayerPlan& layer) {
  if (stores_at_end()) return;
  StoreEntries(large_stored_.As<StoredLayer>() + owner_index_[layer.index], 1, layer.num_kv_heads);
}

void CudaForward::Head() {
  if (stores_at_end()) StoreEntries(small_stored_.As<StoredLayer>(), num_owners_, max_kv_heads_);
  if (rows_ == 0) return;
  const auto residual = TakeResidual(weights_.final_norm);
  if (rows_ <= limits_.max_logit_rows) {
    HeadBatch(0, rows_, residual);
    return;
  }
  if (residual) {
    RunResidualUpdate(Context(kDependOther), *residual, rows_, plan_.hidden_size, x_.As<bf16>());
  }
  for (int first = 0; first < rows_; first += limits_.max_logit_rows) {
    HeadBatch(first, std::min(limits_.max_logit_rows, rows_ - first), std::nullopt);
  }
}

void CudaForward::HeadBatch(int first_output, int num_outputs,
                            const std::optional<ResidualUpdate>& residual) {
  LinearCall head;
  head.weight = weights_.embedding;
  head.rows = num_outputs;
  head.x = x_.As<bf16>() + int64_t{first_output} * plan_.hidden_size;
  head.residual = residual ? &*residual : nullptr;
  head.epilogue = Epilogue::kSoftcap;
  head.softcap = plan_.logit_softcap;
  head.y = logits_.As<float>();
  linear_.Run(Context(kDependOther), head);
  FinishLogits(first_output, num_outputs);
}

void CudaForward::FinishLogits(int first_output, int num_outputs) {
  Sample(first_output, num_outputs);
  if (step_.logits_out != nullptr) {
    LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(step_.logits_out + int64_t{first_output} * plan_.vocab_size,
                                        logits_.As<void>(),
                                        int64_t{num_outputs} * plan_.vocab_size * sizeof(float),
                                        cudaMemcpyDeviceToHost, context_.stream));
  }
}

SamplingCall CudaForward::MakeSamplingCall() const {
  SamplingCall call;
  slots_.Fill(call);
  call.rows = step_.shape.sampled;
  call.vocab_size = plan_.vocab_size;
  call.needs = step_.sampling;
  call.logits = logits_.As<float>();
  call.spec = step_.At<SamplingRow>(step_.offsets.sampling);
  call.out = sampled_.As<SampledRow>();
  call.scratch = sampling_scratch_.As<void>();
  return call;
}

void CudaForward::Sample(int first_output, int num_outputs) {
  if (step_.shape.sampled == 0) return;
  SamplingCall call = MakeSamplingCall();
  call.first_logits_row = first_output;
  call.num_logits_rows = num_outputs;
  for (size_t pass = 0; pass < step_.sampling_passes.size(); ++pass) {
    const int begin = step_.sampling_passes[pass];
    const int end = pass + 1 < step_.sampling_passes.size() ? step_.sampling_passes[pass + 1]
                                                            : step_.shape.sampled;
    SamplingCall part = call;
    part.rows = end - begin;
    part.spec += begin;
    part.out += begin;
    RunSampling(Context(kDependOther), part);
  }
}

void CudaForward::Accept() {
  if (step_.sampling.drafts) RunAccept(Context(kDependOther), MakeSamplingCall());
}

}  // namespace lapidary::cuda
