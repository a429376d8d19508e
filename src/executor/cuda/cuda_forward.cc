#include "executor/cuda/cuda_forward.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/linear/linear_wide.h"
#include "ops/cuda/moe/count_experts.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/per_layer_block.h"

namespace lapidary::cuda {

bool CudaForward::IsResident(const DeviceStep& step) const {
  return resident_ != nullptr && step.shape.rows == 1 && step.shape.outputs == 1;
}

bool CudaForward::TakesAllSms(const DeviceStep& step) const {
  return IsResident(step) || (drafter_ != nullptr && drafter_->IsResident(step));
}

void CudaForward::Run(const LaunchContext& context, const DeviceStep& step) {
  CHECK_LE(step.shape.rows, limits_.max_rows);
  context_ = context;
  step_ = step;
  row_set_ = kAllRows;
  rows_ = step.shape.rows;
  Prepare();
  if (step.shape.rounds > 0) {
    CHECK(drafter_ != nullptr);
    drafter_->Run(context, step, MakeSamplingCall(), step.draft_logits_out);
    if (step.ids_out != nullptr) {
      RunPublishIds(Context(kDependOther), {.rows = step.shape.rows,
                                            .token_ids = step.At<int32_t>(step.offsets.token_ids),
                                            .counts = step.At<PlannedCounts>(step.offsets.counts),
                                            .ids_out = step.ids_out,
                                            .number_out = step.number_out});
    }
  }
  Embed();
  PlaceSoftRows();
  if (plan_.ple) MakePerLayerInputs();
  if (IsResident(step)) {
    RunResident();
  } else {
    for (const DecoderPhase& phase : Program()) {
      std::visit([&](const auto& known) { RunPhase(known); }, phase);
    }
  }
  if (!step.defers_sampling) Accept();
}

void CudaForward::Sample(const LaunchContext& context, const DeviceStep& step) {
  CHECK_LE(step.shape.outputs, limits_.max_logit_rows);
  context_ = context;
  step_ = step;
  step_.defers_sampling = false;
  SampleRows(0, step.shape.outputs);
  Accept();
}

bool CudaForward::FusesPerLayerBlocks(int rows) const {
  // A block of the kernel loads a sixteenth of the matrices: of a wide model, more than few rows
  // are worth waiting for.
  constexpr int kNarrow = 2048;
  return has_per_layer_block_ && rows <= kMaxPerLayerBlockRows &&
         (rows > kMaxStreamedRows || plan_.hidden_size <= kNarrow);
}

const DecoderProgram& CudaForward::Program() const {
  const bool drops_rows = step_.shape.outputs < step_.shape.rows;
  return programs_[ProgramIndex(drops_rows, FusesPerLayerBlocks(step_.shape.rows),
                                FusesPerLayerBlocks(step_.shape.outputs))];
}

void CudaForward::Prepare() {
  const StepOffsets& at = step_.offsets;
  PrepareStepCall call;
  slots_.Fill(call);
  call.rows = step_.shape.rows;
  call.sequences = step_.shape.sequences;
  call.sampled = step_.shape.sampled;
  call.rounds = step_.shape.rounds;
  call.two_row_sets = step_.shape.two_row_sets;
  call.vocab_size = plan_.vocab_size;
  call.counts = step_.At<PlannedCounts>(at.counts);
  call.planned = step_.At<PlannedSequence>(at.planned);
  call.planned_ids = step_.At<int32_t>(at.planned_ids);
  call.sequence_of = step_.At<int32_t>(at.sequence_of);
  call.table_entries = step_.At<PlannedTableEntry>(at.table_entries);
  call.planned_items = step_.At<AttentionItem>(at.planned_items);
  if (step_.shape.sees_ahead) {
    call.keys_ahead[kAllRows] = step_.At<int32_t>(at.keys_ahead[kAllRows]);
    call.keys_ahead[kOutputRows] = step_.At<int32_t>(at.keys_ahead[kOutputRows]);
  }
  call.sampling = step_.At<SamplingRow>(at.sampling);
  call.planned_rounds = step_.At<PlannedRound>(at.rounds);
  call.draft_tokens = step_.At<int32_t>(at.draft_tokens);
  call.draft_positions = step_.At<int32_t>(at.draft_positions);
  if (drafter_ != nullptr) drafter_->Fill(call);
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
  ResidentStepCall call = MakeResidentCall(step_, kAllRows);
  call.softcap = plan_.logit_softcap;
  if (drafter_ != nullptr) call.hidden_out = Stream(1);
  last_stream_ = 1;
  call.logits = logits_.As<float>();
  for (int group = 0; group < kNumKvGroups; ++group) {
    call.write_pages[group] = step_.At<int32_t>(step_.offsets.write_pages[group]);
    call.write_slots[group] = step_.At<int32_t>(step_.offsets.write_slots[group]);
  }
  resident_->Run(Context(kDependOther), call);
  FinishLogits(0, 1);
}

bf16* CudaForward::NewEntries(int owner) const {
  return stores_at_end() ? small_entries_.As<bf16>(small_offset_[owner])
                         : large_entries_.As<bf16>(large_offset_[owner]);
}

void CudaForward::Embed() {
  EmbedCall call;
  call.rows = rows_;
  call.hidden = plan_.hidden_size;
  call.token_ids = step_.At<int32_t>(step_.offsets.token_ids);
  call.positions = step_.At<int32_t>(step_.offsets.positions);
  call.embedding = weights_.embedding;
  call.scale = plan_.embedding_scale;
  call.hidden_out = Stream(0);
  call.x = plan_.ple ? x_.As<bf16>() : nullptr;
  FillRopeTables(call.rope);
  RunEmbed(Context(kDependOther), call);
}

void CudaForward::PlaceSoftRows() {
  for (const SoftRows& soft : step_.soft_rows) {
    const int64_t at = int64_t{soft.first_row} * plan_.hidden_size;
    RunPlaceRows(Context(kDependOther), {.rows = soft.num_rows,
                                         .hidden = plan_.hidden_size,
                                         .values = soft.values,
                                         .hidden_out = Stream(0) + at,
                                         .x = plan_.ple ? x_.As<bf16>() + at : nullptr});
  }
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

void CudaForward::RunPhase(const KeepOutputRowsPhase& phase) {
  row_set_ = kOutputRows;
  const int outputs = step_.shape.outputs;
  if (outputs == std::exchange(rows_, outputs) || outputs == 0) return;
  const auto gather = [&](const void* from, int64_t row_bytes, void* to) {
    void* const place = from == to ? gathered_.As<void>() : to;
    RunGatherRows(Context(kDependOther), from, step_.At<int32_t>(step_.offsets.output_rows),
                  outputs, row_bytes, place);
    if (place == to) return;
    LAPIDARY_CUDA_CHECK(
        cudaMemcpyAsync(to, place, outputs * row_bytes, cudaMemcpyDeviceToDevice, context_.stream));
  };
  gather(Stream(phase.from), int64_t{plan_.hidden_size} * sizeof(float), Stream(phase.to));
  if (phase.is_pending) {
    gather(block_out_.As<void>(), int64_t{plan_.hidden_size} * sizeof(bf16), block_out_.As<void>());
  }
  if (plan_.ple) {
    gather(ple_inputs_.As<void>(), int64_t{plan_.num_layers} * plan_.ple->width * sizeof(bf16),
           ple_inputs_.As<void>());
  }
}

CudaBlocks::AttentionInputs CudaForward::InputsOf(const LayerAttention& layer) const {
  AttentionInputs inputs;
  if (row_set_ == kOutputRows) inputs.rope_rows = step_.At<int32_t>(step_.offsets.output_rows);
  if (layer.owns_kv()) {
    CHECK_EQ(rows_, step_.shape.rows);  // Owners of KV see every row.
    inputs.own_entries = NewEntries(layer.layer);
  }
  inputs.new_entries = NewEntries(layer.kv_layer);
  const int group = layer.group;
  inputs.sequences = step_.At<AttentionSequence>(step_.offsets.attention[group][row_set_]);
  inputs.items = step_.At<AttentionItem>(step_.offsets.items[group][row_set_]);
  inputs.num_items = step_.At<int32_t>(step_.offsets.num_items[group][row_set_]);
  if (group == kSlidingGroup && step_.shape.sees_ahead) {
    inputs.keys_ahead = step_.At<int32_t>(step_.offsets.keys_ahead[row_set_]);
  }
  inputs.tile_rows = step_.tile_rows[group][row_set_];
  inputs.window = layer.window;
  return inputs;
}

void CudaForward::RunPhase(const ProductPhase& phase) {
  if (rows_ == 0) return;
  if (phase.attention) Attend(*phase.attention, InputsOf(*phase.attention));
  if (phase.block == DecoderBlock::kHead) {
    RunHead(phase);
  } else if (phase.is_beside_experts && BranchesOff()) {
    RunBeside(phase);
  } else {
    RunProduct(phase);
  }
}

bool CudaForward::BranchesOff() const {
  // Of one row, the first product updates the stream itself, which the experts' router reads. Of
  // many, each kernel keeps the card busy.
  constexpr int kMostRows = 768;
  return rows_ > 1 && rows_ <= kMostRows && !context_.synchronous;
}

void CudaForward::RunBeside(const ProductPhase& phase) {
  ProductPhase product = phase;
  if (phase.reads_stream()) {
    if (phase.input == ProductInput::kResidual) {
      RunResidualUpdate(Context(kDependOther), Update(phase.residual), rows_, plan_.hidden_size,
                        x_.As<bf16>());
      product.input = ProductInput::kNormed;
    }
    dense_branch_.ForkFrom(context_.stream);
  }
  const cudaStream_t stream = std::exchange(context_.stream, dense_branch_.get());
  depends_on_last_ = !phase.reads_stream();
  RunProduct(product);
  depends_on_last_ = true;
  context_.stream = stream;
}

void CudaForward::RunPhase(const ExpertsPhase& phase) {
  if (rows_ == 0) return;
  const MoePlan& moe = *plan_.moe;
  RouteCall route;
  route.shape = {rows_, plan_.hidden_size, moe.expert_width, moe.num_experts, moe.top_k};
  route.plan = PlanGroups(route.shape);
  route.eps = plan_.rms_norm_eps;
  route.h = Stream(phase.stream);
  route.router_scale = phase.router_scale;
  route.router_weight = phase.router;
  route.per_expert_scale = phase.per_expert_scale;
  route.pre_norm = phase.pre_norm;
  route.experts = router_choice_.As<int32_t>();
  route.weights = router_choice_.As<float>(int64_t{limits_.max_rows} * moe.top_k * 4);
  route.x = expert_inputs_.As<bf16>();
  route.scratch = expert_scratch_.As<void>();
  route.counters = route_counters_.As<int32_t>();
  route.leaves_room = BranchesOff();
  RunRoute(Context(kDependOther), route);
  if (limits_.counts_experts) CountExperts(phase, route);

  ExpertsCall experts;
  experts.shape = route.shape;
  experts.plan = route.plan;
  experts.eps = plan_.rms_norm_eps;
  experts.experts = route.experts;
  experts.weights = route.weights;
  experts.x = expert_inputs_.As<bf16>();
  experts.gate_up = phase.gate_up;
  experts.down = phase.down;
  experts.post_dense_norm = phase.post_dense_norm;
  experts.post_expert_norm = phase.post_expert_norm;
  experts.block_out = block_out_.As<bf16>();
  experts.scratch = expert_scratch_.As<void>();
  if (BranchesOff()) experts.dense_done = dense_branch_.End().get();
  RunExperts(Context(kDependOther), experts);
}

void CudaForward::CountExperts(const ExpertsPhase& phase, const RouteCall& route) {
  const bool is_all = row_set_ == kAllRows;
  RunCountExperts(Context(kDependOther),
                  {.rows = rows_,
                   .top_k = route.shape.top_k,
                   .experts = route.experts,
                   .padding_slot = limits_.max_sequences,
                   .output_rows = is_all ? nullptr : step_.At<int32_t>(step_.offsets.output_rows),
                   .sequence_of = step_.At<int32_t>(step_.offsets.sequence_of),
                   .sequences = step_.At<PlannedSequence>(step_.offsets.planned),
                   .counts = expert_counts_.As<unsigned long long>() +
                             int64_t{phase.layer} * route.shape.num_experts});
}

void CudaForward::RunPhase(const PerLayerBlockPhase& phase) {
  if (rows_ == 0) return;
  PerLayerBlockCall call;
  call.rows = rows_;
  call.hidden_size = plan_.hidden_size;
  call.before = Update(phase.gate.residual);
  call.gate = phase.gate.weight;
  call.projection = phase.projection;
  call.multiplier = phase.gate.multiplier;
  call.multiplier_stride = phase.gate.multiplier_stride;
  call.after = Update(phase.next);
  call.x = x_.As<bf16>();
  RunPerLayerBlock(Context(kDependLinear), call);
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

void CudaForward::RunPhase(const StoreEntriesPhase& phase) {
  if (!stores_at_end()) {
    StoreEntries(large_stored_.As<StoredLayer>() + owner_index_[phase.layer], 1,
                 plan_.layers[phase.layer].num_kv_heads);
  } else if (phase.is_last) {
    StoreEntries(small_stored_.As<StoredLayer>(), num_owners_, max_kv_heads_);
  }
}

void CudaForward::RunHead(const ProductPhase& phase) {
  const ResidualUpdate update = Update(phase.residual);
  last_stream_ = phase.residual.to;
  const ResidualUpdate* residual = phase.input == ProductInput::kResidual ? &update : nullptr;
  if (rows_ <= limits_.max_logit_rows) {
    HeadBatch(phase.weight, 0, rows_, residual);
    return;
  }
  if (residual != nullptr) {
    RunResidualUpdate(Context(kDependOther), update, rows_, plan_.hidden_size, x_.As<bf16>());
  }
  for (int first = 0; first < rows_; first += limits_.max_logit_rows) {
    HeadBatch(phase.weight, first, std::min(limits_.max_logit_rows, rows_ - first), nullptr);
  }
}

bool CudaForward::CapsLogits(int num_outputs) const {
  // Of fewer rows the cap is part of storing them; with batch_invariant it is always.
  if (num_outputs < kFewestGemmRows || limits_.batch_invariant) return true;
  return step_.sampling.draws || step_.sampling.adjustments || step_.sampling.logprobs ||
         step_.logits_out != nullptr;
}

void CudaForward::HeadBatch(const MatrixRef& weight, int first_output, int num_outputs,
                            const ResidualUpdate* residual) {
  LinearCall head;
  head.weight = weight;
  head.rows = num_outputs;
  head.x = x_.As<bf16>() + int64_t{first_output} * plan_.hidden_size;
  head.residual = residual;
  head.epilogue = Epilogue::kSoftcap;
  head.softcap = CapsLogits(num_outputs) ? plan_.logit_softcap : 0.0f;
  head.y = logits_.As<float>();
  scratch_.linear.Run(Context(kDependOther), head);
  FinishLogits(first_output, num_outputs);
}

void CudaForward::FinishLogits(int first_output, int num_outputs) {
  if (!step_.defers_sampling) SampleRows(first_output, num_outputs);
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
  call.masks = step_.masks;
  call.logits = logits_.As<float>();
  call.spec = step_.At<SamplingRow>(step_.offsets.sampling);
  call.out = sampled_.As<SampledRow>();
  call.scratch = sampling_scratch_.As<void>();
  if (drafter_ != nullptr) drafter_->Fill(call);
  return call;
}

void CudaForward::SampleRows(int first_output, int num_outputs) {
  if (step_.shape.sampled == 0) return;
  if (step_.before_sampling) std::exchange(step_.before_sampling, nullptr)();
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
  if (drafter_ != nullptr && step_.shape.sampled > 0) {
    drafter_->KeepHidden(context_, MakeSamplingCall(), Stream(last_stream_));
  }
}

}  // namespace lapidary::cuda
