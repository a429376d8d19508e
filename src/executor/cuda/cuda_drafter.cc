#include "executor/cuda/cuda_drafter.h"

#include <algorithm>

#include "base/check.h"

namespace lapidary::cuda {
namespace {

constexpr const char* kPurpose = "the drafter";

bool AsksBefore(const DrafterOptions& options) {
  return options.position == DraftPosition::kBeforeIt;
}

std::vector<LayerInputs> InputsFromTarget(const AssistantPlan& assistant,
                                          const CudaDrafter::Target& target) {
  std::vector<LayerInputs> inputs;
  for (const int donor : assistant.kv_donors) {
    inputs.push_back({.owner_k_norm = target.weights.layers[donor].attention.k_norm,
                      .kv_offset = target.layout.layer_offset[donor]});
  }
  return inputs;
}

}  // namespace

std::array<AttentionGeometry, kNumKvGroups> DraftGeometry(const DrafterOptions& options) {
  std::array<AttentionGeometry, kNumKvGroups> geometry{};
  for (const LayerPlan& layer : options.plan.decoder.layers) {
    geometry[KvGroupOf(layer.kind)] = {layer.num_heads, layer.num_kv_heads,
                                       DraftWindow(layer.window, AsksBefore(options))};
  }
  return geometry;
}

CudaDrafter::CudaDrafter(const DeviceInfo& device, const DrafterOptions& options,
                         const DeviceAssistantWeights& weights, const Target& target,
                         KernelScratch& scratch, const CudaForwardLimits& limits)
    : CudaBlocks(options.plan.decoder, target.layout, target.slots, scratch, limits,
                 limits.max_sequences),
      assistant_(options.plan),
      weights_(weights),
      target_(target),
      asks_before_(AsksBefore(options)),
      likeliest_(options.draw == DraftDraw::kLikeliest),
      geometry_(DraftGeometry(options)) {
  DecoderInputs inputs;
  inputs.layers = InputsFromTarget(assistant_, target);
  for (const LayerPlan& layer : plan_.layers) inputs.layers[layer.index].rope = RopeOf(layer.index);
  program_ = MakeAssistantProgram(plan_, weights.decoder, inputs);
  for (DecoderPhase& phase : program_) {
    auto& attention = std::get<ProductPhase>(phase).attention;
    if (attention) attention->window = geometry_[attention->group].window;
  }
  auto& head = std::get<ProductPhase>(program_.back());
  if (assistant_.ordered_head) head.weight = weights.centroids;
  final_read_ = head.residual;
  if (limits.resident_steps && !limits.batch_invariant) {
    resident_ = ResidentSteps::Create(device, program_);
  }
  program_.pop_back();

  const DrafterBytes sizes = PlanDrafter(assistant_, limits);
  hidden_rows_ = DeviceBuffer(sizes.hidden_rows, kPurpose);
  LAPIDARY_CUDA_CHECK(cudaMemset(hidden_rows_.As<void>(), 0, hidden_rows_.num_bytes()));
  inputs_ = DeviceBuffer(sizes.inputs, kPurpose);
  feedback_ = DeviceBuffer(sizes.feedback, kPurpose);
  token_ordering_ = DeviceBuffer(sizes.token_ordering, kPurpose);
  head_scratch_ = DeviceBuffer(sizes.head, kPurpose);
  LAPIDARY_CUDA_CHECK(cudaMemset(head_scratch_.As<void>(), 0, head_scratch_.num_bytes()));
  if (assistant_.ordered_head) {
    const std::vector<int32_t>& ordering = options.source->token_ordering();
    CHECK_EQ(static_cast<int64_t>(ordering.size() * sizeof(int32_t)), sizes.token_ordering);
    LAPIDARY_CUDA_CHECK(cudaMemcpy(token_ordering_.As<void>(), ordering.data(),
                                   sizes.token_ordering, cudaMemcpyHostToDevice));
  }
  num_simulated_ = static_cast<int>(options.simulated_rates.size());
  simulated_rates_ = DeviceBuffer(sizes.simulated_rates, kPurpose);
  CHECK_LE(num_simulated_, kMaxDrafts);
  LAPIDARY_CUDA_CHECK(cudaMemcpy(simulated_rates_.As<void>(), options.simulated_rates.data(),
                                 num_simulated_ * sizeof(float), cudaMemcpyHostToDevice));
}

void CudaDrafter::Fill(PrepareStepCall& call) const {
  call.drafts_ask_before = asks_before_;
  for (int group = 0; group < kNumKvGroups; ++group) {
    call.draft_window[group] = geometry_[group].window;
  }
}

void CudaDrafter::Fill(SamplingCall& call) const {
  if (num_simulated_ == 0) return;
  call.simulated_rates = simulated_rates_.As<float>();
  call.num_simulated = num_simulated_;
}

void CudaDrafter::MakeInputs(const DeviceStep& step, int draft_idx) {
  DraftInputsCall call;
  call.rows = rows_;
  call.backbone = assistant_.backbone_hidden_size;
  call.tokens = step.At<int32_t>(step.offsets.draft_tokens);
  call.embedding = target_.weights.embedding;
  call.scale = target_.plan.embedding_scale;
  call.inputs = inputs_.As<bf16>();
  if (draft_idx == 0) {
    call.hidden = hidden_rows_.As<bf16>();
    call.rounds = step.At<PlannedRound>(step.offsets.rounds);
    call.planned = step.At<PlannedSequence>(step.offsets.planned);
    call.positions = step.At<int32_t>(step.offsets.draft_positions);
    FillRopeTables(call.rope);
  } else {
    call.hidden = feedback_.As<bf16>();
  }
  RunDraftInputs(Context(kDependOther), call);

  LinearCall projection;
  projection.weight = weights_.pre_projection;
  projection.x = inputs_.As<bf16>();
  projection.epilogue = Epilogue::kSoftcap;  // f32, and no cap
  projection.y = Stream(0);
  RunLinear(projection, kDependLinear);
}

CudaBlocks::AttentionInputs CudaDrafter::InputsOf(const LayerAttention& layer,
                                                  const DeviceStep& step) const {
  const int group = layer.group;
  AttentionInputs inputs;
  inputs.sequences = step.At<AttentionSequence>(step.offsets.attention[group][kDraftRows]);
  inputs.items = step.At<AttentionItem>(step.offsets.items[group][kDraftRows]);
  inputs.num_items = step.At<int32_t>(step.offsets.num_items[group][kDraftRows]);
  inputs.tile_rows = step.tile_rows[group][kDraftRows];
  inputs.window = geometry_[group].window;
  return inputs;
}

void CudaDrafter::RunLayers(const DeviceStep& step) {
  for (const DecoderPhase& phase : program_) {
    const auto& product = std::get<ProductPhase>(phase);
    if (product.attention) Attend(*product.attention, InputsOf(*product.attention, step));
    RunProduct(product);
  }
  RunResidualUpdate(Context(kDependOther), Update(final_read_), rows_, plan_.hidden_size,
                    x_.As<bf16>());
}

bool CudaDrafter::IsResident(const DeviceStep& step) const {
  const std::vector<int32_t>& rows = step.rounds_with_draft;
  return resident_ != nullptr && std::find(rows.begin(), rows.end(), 1) != rows.end();
}

void CudaDrafter::RunResident(const DeviceStep& step, float* scores) {
  ResidentStepCall call = MakeResidentCall(step, kDraftRows);
  call.hidden_out = Stream(1);
  call.logits = scores;
  resident_->Run(Context(kDependOther), call);

  ResidualUpdate normed;
  normed.hidden = Stream(1);
  normed.pre_norm = final_read_.pre_norm;
  normed.eps = plan_.rms_norm_eps;
  RunResidualUpdate(Context(kDependOther), normed, rows_, plan_.hidden_size, x_.As<bf16>());
}

float* CudaDrafter::HeadScores(const SamplingCall& sampling) const {
  if (!assistant_.ordered_head) return sampling.logits;
  const auto places = DrafterBytes::PlaceHead(assistant_, limits_.max_sequences);
  return head_scratch_.As<float>(places.scores);
}

void CudaDrafter::RunHead(const SamplingCall& sampling, bool wants_logits) {
  const DrafterBytes::HeadPlaces places =
      DrafterBytes::PlaceHead(assistant_, limits_.max_sequences);
  const RowWinners winner{head_scratch_.As<unsigned long long>(places.winners),
                          head_scratch_.As<int32_t>(places.counters)};
  // Nothing but the row decides.
  const bool is_plain = likeliest_ && !sampling.needs.adjustments && !wants_logits;
  if (assistant_.ordered_head) {
    OrderedHeadCall head;
    head.rows = rows_;
    head.hidden_size = plan_.hidden_size;
    head.vocab_size = plan_.vocab_size;
    head.num_centroids = assistant_.ordered_head->num_centroids;
    head.top_k = assistant_.ordered_head->top_k;
    head.x = x_.As<bf16>();
    head.centroid_scores = HeadScores(sampling);
    head.head = weights_.decoder.embedding;
    head.token_ordering = token_ordering_.As<int32_t>();
    head.chosen = head_scratch_.As<int32_t>(places.chosen);
    head.winner = winner;
    head.draft = sampling.draft;
    if (!is_plain) head.logits = sampling.logits;
    RunOrderedHead(Context(kDependOther), head);
  } else if (is_plain) {
    RunLikeliest(Context(kDependOther), {.rows = rows_,
                                         .vocab_size = plan_.vocab_size,
                                         .logits = sampling.logits,
                                         .winner = winner,
                                         .draft = sampling.draft});
  }
  if (!is_plain) RunSampling(Context(kDependOther), sampling);
}

void CudaDrafter::Run(const LaunchContext& context, const DeviceStep& step,
                      const SamplingCall& sampling, float* logits_out) {
  context_ = context;
  SamplingCall draws = sampling;
  draws.needs.logprobs = false;
  // Rows of several passes keep what adjustments replace in the same places: drafts then go without
  // them, which costs acceptance alone.
  if (step.sampling_passes.size() > 1) draws.needs.adjustments = false;
  draws.first_logits_row = 0;
  draws.draft.rounds = step.At<PlannedRound>(step.offsets.rounds);
  draws.draft.likeliest = likeliest_;
  draws.draft.spec = step.At<SamplingRow>(step.offsets.sampling);
  draws.draft.token_ids = step.At<int32_t>(step.offsets.token_ids);
  draws.draft.last_tokens = step.At<int32_t>(step.offsets.draft_tokens);
  for (size_t draft_idx = 0; draft_idx < step.rounds_with_draft.size(); ++draft_idx) {
    rows_ = step.rounds_with_draft[draft_idx];
    MakeInputs(step, static_cast<int>(draft_idx));
    draws.rows = rows_;
    draws.num_logits_rows = rows_;
    draws.draft.draft_idx = static_cast<int>(draft_idx);
    const bool is_resident = resident_ != nullptr && rows_ == 1;
    if (is_resident) {
      RunResident(step, HeadScores(draws));
    } else {
      RunLayers(step);
    }
    if (draft_idx + 1 < step.rounds_with_draft.size()) {
      LinearCall feedback;
      feedback.weight = weights_.post_projection;
      feedback.x = x_.As<bf16>();
      feedback.y = feedback_.As<bf16>();
      RunLinear(feedback, kDependLinear);
    }
    if (!is_resident) {
      LinearCall head;
      head.weight = assistant_.ordered_head ? weights_.centroids : weights_.decoder.embedding;
      head.x = x_.As<bf16>();
      head.epilogue = Epilogue::kSoftcap;
      head.y = HeadScores(draws);
      RunLinear(head, assistant_.ordered_head ? kDependLinear : kDependOther);
    }
    RunHead(draws, logits_out != nullptr);
    if (logits_out != nullptr) {
      const int64_t count = int64_t{rows_} * plan_.vocab_size;
      LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(logits_out, draws.logits, count * sizeof(float),
                                          cudaMemcpyDeviceToHost, context.stream));
      logits_out += count;
    }
  }
}

void CudaDrafter::KeepHidden(const LaunchContext& context, const SamplingCall& sampling,
                             const float* stream) {
  context_ = context;
  KeepHiddenCall call;
  call.sampled = sampling.rows;
  call.hidden_size = target_.plan.hidden_size;
  call.eps = target_.plan.rms_norm_eps;
  call.spec = sampling.spec;
  call.sampled_rows = sampling.out;
  call.stream = stream;
  call.norm = target_.weights.final_norm;
  call.hidden = hidden_rows_.As<bf16>();
  RunKeepHidden(Context(kDependOther), call);
}

int64_t CudaDrafter::num_bytes_for_test() const {
  return num_block_bytes_for_test() + hidden_rows_.num_bytes() + inputs_.num_bytes() +
         feedback_.num_bytes() + token_ordering_.num_bytes() + head_scratch_.num_bytes() +
         simulated_rates_.num_bytes() + (resident_ ? resident_->num_bytes_for_test() : 0);
}

}  // namespace lapidary::cuda
