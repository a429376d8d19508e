#include "executor/cuda/cuda_forward.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/moe.h"
#include "ops/cuda/per_layer_block.h"

namespace lapidary::cuda {
namespace {

constexpr int kInitialListEntries = 1 << 16;  // of each sampling list

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
  int64_t sampling_replaced = 0;
  int64_t partials = 0;
  int64_t router_choice = 0;
  int64_t expert_scratch = 0;
  int64_t small_entries = 0;
  int64_t large_entries = 0;

  Sizes(const ModelPlan& plan, const CudaForwardLimits& limits) {
    const int64_t rows = limits.max_rows;
    constexpr int64_t kHalf = sizeof(bf16);
    hidden = rows * plan.hidden_size * static_cast<int64_t>(sizeof(float));
    narrow = rows * plan.hidden_size * kHalf;
    int64_t widest = 0;
    int64_t shared_entries = 0;
    for (const LayerPlan& layer : plan.layers) {
      widest = std::max(widest, int64_t{QkvHeads(layer)} * layer.head_dim);
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
    sampling_replaced = int64_t{3} * kInitialListEntries * static_cast<int64_t>(sizeof(float));
    partials = AttentionPartialBytes(limits.max_partials, limits.batch_invariant);
    if (plan.moe) {
      router_choice = rows * plan.moe->top_k * 8;
      expert_scratch =
          ExpertScratchBytes({limits.max_rows, plan.hidden_size, plan.moe->expert_width,
                              plan.moe->num_experts, plan.moe->top_k});
    }
  }
};

CudaForward::CudaForward(const ModelPlan& plan, const DeviceWeights& weights,
                         const KvLayout& layout, const CudaForwardLimits& limits)
    : plan_(plan),
      weights_(weights),
      layout_(layout),
      limits_(limits),
      linear_({.batch_invariant = limits.batch_invariant, .max_rows = limits.max_rows}) {
  const Sizes sizes(plan, limits);
  constexpr const char* kPurpose = "a step's activations";
  for (DeviceBuffer& hidden : hidden_) hidden = DeviceBuffer(sizes.hidden, kPurpose);
  x_ = DeviceBuffer(sizes.narrow, kPurpose);
  block_out_ = DeviceBuffer(sizes.narrow, kPurpose);
  wide_ = DeviceBuffer(sizes.wide, kPurpose);
  queries_ = DeviceBuffer(sizes.queries, kPurpose);
  attended_ = DeviceBuffer(sizes.attended, kPurpose);
  ple_inputs_ = DeviceBuffer(sizes.ple, kPurpose);
  gathered_ = DeviceBuffer(sizes.gathered, kPurpose);
  resolved_ids_ = DeviceBuffer(limits.max_rows * sizeof(int32_t), kPurpose);
  logits_ = DeviceBuffer(sizes.logits, "the logits");
  sampled_ = DeviceBuffer(sizes.sampled, "the sampler");
  sampling_scratch_ = DeviceBuffer(sizes.sampling_scratch, "the sampler");
  sampling_replaced_ = DeviceBuffer(sizes.sampling_replaced, "the sampler");
  list_capacity_ = kInitialListEntries;
  partials_ = DeviceBuffer(sizes.partials, "split attention");
  counters_ = DeviceBuffer(limits.max_partials * sizeof(int32_t), "split attention");
  LAPIDARY_CUDA_CHECK(cudaMemset(counters_.As<void>(), 0, counters_.num_bytes()));
  router_choice_ = DeviceBuffer(sizes.router_choice, "the experts");
  expert_scratch_ = DeviceBuffer(sizes.expert_scratch, "the experts");
  small_entries_ = DeviceBuffer(sizes.small_entries, "new KV entries");
  large_entries_ = DeviceBuffer(sizes.large_entries, "new KV entries");
  // One slot more than sequences: padding rows leave their token there.
  const int64_t token_bytes = (limits.max_sequences + 1) * sizeof(int32_t);
  last_tokens_ = DeviceBuffer(token_bytes, "the sampler");
  LAPIDARY_CUDA_CHECK(cudaMemset(last_tokens_.As<void>(), 0, token_bytes));

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
    const int64_t row_pairs = RopeRowPairs(layer.rope.num_turned_pairs);
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
                         PerLayerBlockSupports(plan.hidden_size, plan.ple->width);
  if (limits.resident_steps && !limits.batch_invariant && !plan.moe) {
    std::vector<const float2*> rope;
    for (const int table : rope_of_layer_) rope.push_back(rope_tables_[table].As<float2>());
    resident_ = ResidentSteps::Create(
        DescribeResidentModel(plan, weights, layout, rope, ple_inputs_.As<bf16>()));
  }
}

bool CudaForward::ReserveLists(const StepShape& shape) {
  const int most = *std::max_element(shape.list_entries.begin(), shape.list_entries.end());
  if (most <= list_capacity_) return false;
  LAPIDARY_CUDA_CHECK(cudaDeviceSynchronize());
  list_capacity_ = 2 * most;
  sampling_replaced_ = DeviceBuffer(
      int64_t{3} * list_capacity_ * static_cast<int64_t>(sizeof(float)), "the sampler");
  return true;
}

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
  if (IsResident(step)) {
    RunResident();
  } else {
    RunDecoder(plan_, skip_unneeded_rows, *this);
  }
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
    call.page_ids[group] = step_.At<int32_t>(step_.offsets.page_ids[group]);
    call.sequences[group] = step_.At<AttentionSequence>(step_.offsets.sequences[group][kAllRows]);
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
  call.slots = step_.At<int32_t>(step_.offsets.slots);
  call.last_tokens = last_tokens();
  call.positions = step_.At<int32_t>(step_.offsets.positions);
  call.embedding = weights_.embedding;
  call.vocab_size = plan_.vocab_size;
  call.scale = plan_.embedding_scale;
  call.resolved_ids = resolved_ids_.As<int32_t>();
  call.hidden_out = hidden_[current_].As<float>();
  call.x = plan_.ple ? x_.As<bf16>() : nullptr;
  for (size_t idx = 0; idx < rope_plans_.size(); ++idx) {
    call.rope[idx] = {rope_frequencies_[idx].As<float>(), rope_plans_[idx].num_turned_pairs,
                      rope_tables_[idx].As<float2>()};
  }
  RunEmbed(Context(kDependOther), call);
}

void CudaForward::MakePerLayerInputs() {
  const int columns = plan_.num_layers * plan_.ple->width;
  LinearCall projection;
  projection.weight = weights_.ple_projection;
  projection.out_dim = columns;
  projection.in_dim = plan_.hidden_size;
  projection.x = x_.As<bf16>();
  projection.y = wide_.As<bf16>();
  RunLinear(projection, kDependOther);

  PerLayerInputsCall call;
  call.rows = rows_;
  call.num_layers = plan_.num_layers;
  call.width = plan_.ple->width;
  call.hidden = plan_.hidden_size;
  call.eps = plan_.rms_norm_eps;
  call.resolved_ids = resolved_ids_.As<int32_t>();
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
  projection.weight = weights.attention.q_proj;  // k and v lie behind q
  projection.out_dim = QkvHeads(layer) * layer.head_dim;
  projection.in_dim = plan_.hidden_size;
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
  call.turned_pairs = layer.rope.num_turned_pairs;
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
  call.page_ids = step_.At<int32_t>(step_.offsets.page_ids[group]);
  call.sequences = step_.At<AttentionSequence>(step_.offsets.sequences[group][row_set_]);
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
  call.out_dim = plan_.hidden_size;
  call.in_dim = layer.num_heads * layer.head_dim;
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
  gate_up.weight = weights.mlp.gate_proj;  // up lies behind gate
  gate_up.out_dim = 2 * layer.mlp_width;
  gate_up.in_dim = plan_.hidden_size;
  gate_up.epilogue = Epilogue::kGatedGelu;
  gate_up.y = wide_.As<bf16>();
  RunLinear(gate_up, residual, kDependLinear);
  LinearCall down;
  down.weight = weights.mlp.down_proj;
  down.out_dim = plan_.hidden_size;
  down.in_dim = layer.mlp_width;
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
  // A block of the kernel brings a sixteenth of the matrices: of a wide model, more than few rows
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
  gate.out_dim = width;
  gate.in_dim = plan_.hidden_size;
  gate.epilogue = Epilogue::kGeluMul;
  gate.multiplier = multiplier;
  gate.multiplier_stride = multiplier_stride;
  gate.y = wide_.As<bf16>();
  RunLinear(gate, residual, kDependLinear);
  LinearCall projection;
  projection.weight = weights.ple.projection;
  projection.out_dim = plan_.hidden_size;
  projection.in_dim = width;
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
    HeadTurn(0, rows_, residual);
    return;
  }
  if (residual) {
    RunResidualUpdate(Context(kDependOther), *residual, rows_, plan_.hidden_size, x_.As<bf16>());
  }
  for (int first = 0; first < rows_; first += limits_.max_logit_rows) {
    HeadTurn(first, std::min(limits_.max_logit_rows, rows_ - first), std::nullopt);
  }
}

void CudaForward::HeadTurn(int first_output, int num_outputs,
                           const std::optional<ResidualUpdate>& residual) {
  LinearCall head;
  head.weight = weights_.embedding;
  head.out_dim = plan_.vocab_size;
  head.in_dim = plan_.hidden_size;
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

void CudaForward::Sample(int first_output, int num_outputs) {
  if (step_.shape.sampled == 0) return;
  SamplingCall call;
  call.rows = step_.shape.sampled;
  call.first_logits_row = first_output;
  call.num_logits_rows = num_outputs;
  call.vocab_size = plan_.vocab_size;
  call.needs = step_.sampling;
  call.logits = logits_.As<float>();
  call.spec = step_.At<SamplingRow>(step_.offsets.sampling);
  call.suppressed = step_.At<int32_t>(step_.offsets.lists[0]);
  call.biases = step_.At<SamplingBias>(step_.offsets.lists[1]);
  call.history = step_.At<SamplingHistory>(step_.offsets.lists[2]);
  call.replaced_suppressed = sampling_replaced_.As<float>();
  call.replaced_biases = call.replaced_suppressed + list_capacity_;
  call.replaced_history = call.replaced_biases + list_capacity_;
  call.last_tokens = last_tokens();
  call.out = sampled_.As<SampledRow>();
  call.scratch = sampling_scratch_.As<void>();
  RunSampling(Context(kDependOther), call);
}

}  // namespace lapidary::cuda
