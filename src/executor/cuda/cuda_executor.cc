#include "executor/cuda/cuda_executor.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "base/check.h"
#include "device/device_turn.h"
#include "executor/cuda/check_supported.h"
#include "executor/cuda/memory_share.h"
#include "model/bind_weights.h"

namespace lapidary::cuda {
namespace {

constexpr int kMaxInFlight = 2;

StepArrays::Options ArrayOptions(const DeviceInfo& device, const ModelPlan& plan,
                                 const CudaExecutorOptions& options, const SlotMemory& slots) {
  StepArrays::Options arrays;
  arrays.replaced_capacity = slots.replaced_capacity();
  for (int group = 0; group < kNumKvGroups; ++group) {
    arrays.table_stride[group] = slots.table_stride(group);
  }
  arrays.hidden_size = plan.hidden_size;
  if (plan.media_tokens) arrays.media_pad_id = plan.media_tokens->pad;
  arrays.images_see_both_ways = plan.images_see_both_ways;
  arrays.split_row_sets = plan.has_kv_sharing() && options.skip_unneeded_rows;
  arrays.padding_slot = options.max_num_seqs;
  arrays.batch_invariant = options.batch_invariant;
  arrays.num_sms = device.num_sms;
  if (options.drafter) arrays.draft_geometry = DraftGeometry(*options.drafter);
  for (const LayerPlan& layer : plan.layers) {
    const int group = KvGroupOf(layer.kind);
    arrays.geometry[group] = {layer.num_heads, layer.num_kv_heads, layer.window};
    arrays.head_dim[group] = layer.head_dim;
    for (size_t tile = 0; tile < std::size(kAttentionTileRows); ++tile) {
      const int tile_rows = kAttentionTileRows[tile];
      if (tile_rows > 64 && layer.head_dim != 256) continue;
      AttentionWorkOptions& work = arrays.work[group][tile];
      work = WorkOfTile(tile_rows, options.batch_invariant);
      work.num_blocks = AttentionBlocks(device, layer.kv_entry, tile_rows, options.batch_invariant);
      work.max_partials = kMaxAttentionPartials;
    }
  }
  return arrays;
}

Result<WeightPlan> PlanGpuWeights(const std::vector<TensorSpec>& specs, const TensorSource* source,
                                  const WeightRequest& request) {
  auto weights = WeightPlan::Make(specs, source, request);
  if (!weights.ok()) return MakeError("{}; or add --device cpu", weights.error().message);
  return weights;
}

std::string LimitText(const MemoryLimit& limit) {
  std::string text = fmt::format("--gpu-memory-utilization {:.2f}", limit.share);
  if (limit.cap > 0) {
    text += fmt::format(", --gpu-memory {:.2f} GB, of which {:.2f} GB for the driver",
                        1e-9 * static_cast<double>(limit.cap), 1e-9 * kDriverBytes);
  }
  return text;
}

}  // namespace

// One step between Submit and Collect, and the page-locked memory it needs; reused.
struct CudaExecutor::InFlight {
  StepBatch batch;
  std::vector<int32_t> first_sampled;  // by sequence
  SlotMemory::Staging bindings;
  PinnedBuffer arrays;
  PinnedBuffer copies;
  PinnedBuffer soft_rows;  // grows with the media that come
  PinnedBuffer sampled;
  PinnedBuffer expert_counts;
  PinnedBuffer logits;  // grows where logits are asked for
  PinnedBuffer draft_logits;
  PinnedBuffer draft_ids;                  // where they are asked for: the step's ids
  std::vector<PlannedRound> rounds;        // as they were drafted
  std::vector<int32_t> rounds_with_draft;  // StepArrays
  std::vector<MaskedSequence> masked;
  bool has_advanced = false;  // its tokens have moved the grammars on
  // The stream comes to the first when the step before is done.
  Event began{cudaEventDefault};
  Event done{cudaEventDefault};
};

struct CudaExecutor::Graph {
  int times_seen = 0;
  cudaGraphExec_t exec = nullptr;

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
  }
};

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(const ModelPlan& plan,
                                                           const TensorSource* source,
                                                           const CudaExecutorOptions& wanted) {
  const CudaExecutorOptions options = WithRoomForPadding(wanted);
  RETURN_IF_ERROR(CheckSupported(plan, ForwardLimits(options).max_rows));
  if (options.drafter) RETURN_IF_ERROR(CheckSupported(options.drafter->plan));
  ASSIGN_OR_RETURN(const WeightPlan weights, PlanGpuWeights(RequiredTensors(plan), source,
                                                            {.reader = WeightReader::kGpu,
                                                             .rounding = options.quantisation,
                                                             .head_bits = options.head_bits}));
  std::optional<WeightPlan> drafter;
  if (options.drafter) {
    ASSIGN_OR_RETURN(drafter, PlanGpuWeights(RequiredTensors(options.drafter->plan),
                                             options.drafter->source.get(),
                                             RequestOfDrafter(options.drafter->plan, weights)));
  }
  try {
    LAPIDARY_CUDA_CHECK(cudaSetDevice(options.gpu_ordinal));
    const DeviceInfo device = DescribeDevice(options.gpu_ordinal);
    std::unique_ptr<CudaExecutor> executor(
        new CudaExecutor(device, plan, weights, source, options));
    RETURN_IF_ERROR(executor->LoadWeights());
    executor->limits_ = LimitsOf(options, device.num_sms, weights, drafter);
    const CudaForwardLimits& limits = executor->limits_.forward;
    executor->scratch_ = std::make_unique<KernelScratch>(
        PlanWorkspace(executor->plan_, executor->layout_, limits), limits);
    executor->forward_ = std::make_unique<CudaForward>(
        executor->device_, executor->plan_, executor->weights_, executor->layout_,
        *executor->slots_, *executor->scratch_, limits);
    if (options.drafter) {
      RETURN_IF_ERROR(executor->LoadAssistant(*drafter));
      const CudaDrafter::Target target{executor->plan_, executor->weights_, executor->layout_,
                                       *executor->slots_};
      executor->drafter_ = std::make_unique<CudaDrafter>(
          executor->device_, *executor->options_.drafter, executor->assistant_weights_, target,
          *executor->scratch_, executor->limits_.drafting);
      executor->forward_->set_drafter(executor->drafter_.get());
    }
    executor->AllocateStepBuffers();
    RETURN_IF_ERROR(executor->AllocatePool());
    return executor;
  } catch (const CudaError& error) {
    return MakeError("{}", error.what());
  }
}

CudaExecutor::CudaExecutor(const DeviceInfo& device, const ModelPlan& plan,
                           const WeightPlan& weights, const TensorSource* source,
                           const CudaExecutorOptions& options)
    : device_(device),
      plan_(plan),
      options_(options),
      layout_(options.kv_layout ? *options.kv_layout : MakeKvLayout(plan, kKvFormat)),
      context_{.stream = stream_.get(), .synchronous = options.synchronous, .device = &device_} {
  CHECK(layout_.format == kKvFormat);
  storage_ = std::make_unique<DeviceStorage>(weights, source, options.dummy_seed,
                                             options.ple_placement, context_);
  // One slot more than sequences: that of padding rows.
  slots_ = std::make_unique<SlotMemory>(plan_, layout_, options.max_num_seqs + 1);
  step_arrays_ = std::make_unique<StepArrays>(ArrayOptions(device_, plan_, options, *slots_));
  masks_ = std::make_unique<StepMasks>(options.max_num_seqs + 1, plan_.vocab_size,
                                       MaxMaskedRows(ForwardLimits(options)));
  if (options.expert_counts && plan_.moe) {
    options.expert_counts->Resize(plan_.num_layers, plan_.moe->num_experts);
  }
  for (int idx = 0; idx < kMaxInFlight; ++idx) idle_.push_back(std::make_unique<InFlight>());
}

CudaExecutor::~CudaExecutor() { cudaStreamSynchronize(stream_.get()); }

Status CudaExecutor::LoadWeights() {
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(weights_, BindWeightsTo(plan_, *storage_));
  storage_->Finish();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  spdlog::info("weights: {:.2f} GB on the GPU{} in {:.1f} s",
               1e-9 * static_cast<double>(storage_->device_bytes()),
               storage_->host_bytes() == 0
                   ? ""
                   : fmt::format(", {:.2f} GB page-locked on the host",
                                 1e-9 * static_cast<double>(storage_->host_bytes())),
               seconds);
  return {};
}

Status CudaExecutor::LoadAssistant(const WeightPlan& weights) {
  const DrafterOptions& drafter = *options_.drafter;
  assistant_storage_ = std::make_unique<DeviceStorage>(
      weights, drafter.source.get(), options_.dummy_seed, PlePlacement::kDevice, context_);
  ASSIGN_OR_RETURN(assistant_weights_, BindWeightsTo(drafter.plan, *assistant_storage_));
  assistant_storage_->Finish();
  return {};
}

int64_t CudaExecutor::AllocatedBytes() const {
  int64_t total = storage_->device_bytes() + PlanWorkspace(plan_, layout_, limits_.forward).total();
  if (options_.drafter) {
    total += assistant_storage_->device_bytes() +
             PlanDrafter(options_.drafter->plan, limits_.drafting).total();
  }
  return total;
}

Status CudaExecutor::AllocatePool() {
  size_t free_now = 0;
  size_t total = 0;
  LAPIDARY_CUDA_CHECK(cudaMemGetInfo(&free_now, &total));
  const int64_t usable = UsableBytes(static_cast<int64_t>(total), options_.memory);
  const int64_t allocated = AllocatedBytes();
  const int64_t pool_bytes =
      PoolBytes(static_cast<int64_t>(total), usable, allocated, static_cast<int64_t>(free_now));
  const auto gigabytes = [](size_t num_bytes) { return 1e-9 * static_cast<double>(num_bytes); };
  int64_t num_pages = options_.num_pages ? *options_.num_pages : pool_bytes / layout_.page_bytes;
  if (num_pages < 2) {
    return MakeError(
        "no room for KV on the GPU: {:.2f} GB of its {:.2f} GB are usable ({}), {:.2f} GB are "
        "free; weights and workspace took {:.2f} GB, and a page takes {:.2f} MB. Allow more, or "
        "ask for less with --max-num-seqs or --max-num-batched-tokens",
        gigabytes(usable), gigabytes(total), LimitText(options_.memory), gigabytes(free_now),
        gigabytes(allocated), 1e-6 * static_cast<double>(layout_.page_bytes));
  }
  num_pages = std::min<int64_t>(num_pages, int64_t{1} << 30);
  num_pages_ = static_cast<int>(num_pages);
  pool_ = DeviceBuffer(num_pages * layout_.page_bytes, "the KV pool");
  forward_->set_pool(pool_.As<std::byte>());
  if (drafter_) drafter_->set_pool(pool_.As<std::byte>());
  spdlog::info(
      "KV pool: {} pages of {:.2f} MB = {:.2f} GB; of {:.2f} GB usable, weights and workspace take "
      "{:.2f} GB; {:.2f} GB were free",
      num_pages_, 1e-6 * static_cast<double>(layout_.page_bytes), gigabytes(pool_.num_bytes()),
      gigabytes(usable), gigabytes(allocated), gigabytes(free_now));
  return {};
}

StepShape CudaExecutor::GraphShape(const UniformStep& padded) const {
  StepShape shape;
  shape.rows = padded.sequences * padded.rows_per_sequence;
  shape.sequences = padded.sequences;
  shape.outputs = shape.rows;
  shape.sampled = shape.rows;
  shape.rounds = padded.drafts_here ? padded.sequences : 0;
  shape.table_entries = GraphTableEntries(padded.sequences);
  for (const LayerPlan& layer : plan_.layers) {
    const int tiles = padded.sequences * AttentionTiles(layer, padded.rows_per_sequence);
    shape.items[KvGroupOf(layer.kind)] = tiles * layer.num_kv_heads + kMaxAttentionPartials;
  }
  return shape;
}

UniformStep CudaExecutor::PadForGraph(const StepBatch& batch) const {
  UniformStep step = FindUniformStep(batch);
  step.sequences = PaddedSequences(step.sequences, step.rows_per_sequence);
  const CudaForwardLimits limits = ForwardLimits(options_);
  const int rows = step.sequences * step.rows_per_sequence;
  const int most = std::min(limits.max_sequences * (1 + limits.max_drafts), limits.max_rows);
  return rows > 0 && rows <= most ? step : UniformStep{};
}

void CudaExecutor::AllocateStepBuffers() {
  const CudaForwardLimits limits = ForwardLimits(options_);
  const StepShape most = MaxStepShape(plan_, layout_, limits);
  constexpr const char* kPurpose = "a step's arrays";
  const int64_t num_bytes = LayOutStep(most).total;
  arrays_ = DeviceBuffer(StepArrayBytes(plan_, layout_, limits), kPurpose);
  const int64_t copy_bytes = PageCopyBytes(limits);
  copies_ = DeviceBuffer(copy_bytes, kPurpose);
  published_ = PinnedBuffer((1 + limits.max_rows) * sizeof(int32_t), kPurpose);
  *published_.As<int32_t>() = 0;
  for (const auto& step : idle_) {
    step->arrays = PinnedBuffer(num_bytes, kPurpose);
    step->copies = PinnedBuffer(copy_bytes, kPurpose);
    step->sampled = PinnedBuffer(most.sampled * sizeof(SampledRow), kPurpose);
    step->expert_counts = PinnedBuffer(forward_->expert_counts().num_bytes(), kPurpose);
  }
}

void CudaExecutor::Upload(InFlight& step, const StepOffsets& offsets) {
  CHECK_LE(offsets.total, arrays_.num_bytes());
  const int64_t num_bytes = step_arrays_->Write(offsets, step.arrays.As<std::byte>());
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(arrays_.As<void>(), step.arrays.As<void>(), num_bytes,
                                      cudaMemcpyHostToDevice, stream_.get()));
}

void CudaExecutor::RunPageCopies(InFlight& step) {
  const std::vector<PageCopy>& copies = step.batch.page_copies;
  if (copies.empty()) return;
  const int64_t num_bytes = static_cast<int64_t>(copies.size()) * 2 * sizeof(int32_t);
  CHECK_LE(num_bytes, copies_.num_bytes());
  int32_t* pairs = step.copies.As<int32_t>();
  for (size_t idx = 0; idx < copies.size(); ++idx) {
    pairs[2 * idx] = copies[idx].from;
    pairs[2 * idx + 1] = copies[idx].to;
  }
  LAPIDARY_CUDA_CHECK(
      cudaMemcpyAsync(copies_.As<void>(), pairs, num_bytes, cudaMemcpyHostToDevice, stream_.get()));
  RunCopyPages(context_, pool_.As<std::byte>(), layout_.page_bytes, copies_.As<int32_t>(),
               static_cast<int>(copies.size()));
}

int CudaExecutor::max_rows() const { return ForwardLimits(options_).max_rows; }

std::vector<SoftRows> CudaExecutor::StageSoftRows(InFlight& step) const {
  std::vector<SoftRows> staged = step_arrays_->soft_rows();
  int64_t num_values = 0;
  for (const SoftRows& soft : staged) num_values += int64_t{soft.num_rows} * plan_.hidden_size;
  const int64_t num_bytes = num_values * static_cast<int64_t>(sizeof(float));
  if (step.soft_rows.num_bytes() < num_bytes) {
    step.soft_rows = PinnedBuffer(num_bytes, "images and audio");
  }
  float* to = step.soft_rows.As<float>();
  for (SoftRows& soft : staged) {
    const float* const from = std::exchange(soft.values, to);
    to = std::copy_n(from, int64_t{soft.num_rows} * plan_.hidden_size, to);
  }
  return staged;
}

void CudaExecutor::RunOrReplay(const UniformStep& padded, const DeviceStep& step) {
  Graph& graph = graphs_[{padded.sequences, padded.rows_per_sequence, padded.drafts_here,
                          step.defers_sampling, step.sampling}];
  // The first time all libraries load what they need; a capture must find it loaded.
  if (++graph.times_seen == 1) {
    forward_->Run(context_, step);
    return;
  }
  if (graph.exec == nullptr) {
    LAPIDARY_CUDA_CHECK(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed));
    cudaGraph_t captured = nullptr;
    try {
      forward_->Run(context_, step);
    } catch (...) {
      cudaStreamEndCapture(stream_.get(), &captured);
      if (captured != nullptr) cudaGraphDestroy(captured);
      throw;
    }
    LAPIDARY_CUDA_CHECK(cudaStreamEndCapture(stream_.get(), &captured));
    const cudaError_t code = cudaGraphInstantiate(&graph.exec, captured, 0);
    cudaGraphDestroy(captured);
    LAPIDARY_CUDA_CHECK(code);
  }
  LAPIDARY_CUDA_CHECK(cudaGraphLaunch(graph.exec, stream_.get()));
}

void CudaExecutor::Submit(StepBatch batch) try {
  CHECK_LT(in_flight_.size(), static_cast<size_t>(kMaxInFlight));
  LAPIDARY_CUDA_CHECK(cudaSetDevice(options_.gpu_ordinal));
  std::unique_ptr<InFlight> step = std::move(idle_.back());
  idle_.pop_back();
  step->batch = std::move(batch);
  step->began.Record(stream_.get());
  if (slots_->Bind(context_, step->batch.bindings, step->bindings)) {
    graphs_.clear();
  }
  masks_->Bind(step->batch.bindings);
  RunPageCopies(*step);

  // Padded with a graph or without: the two give the same bits.
  const UniformStep padded = PadForGraph(step->batch);
  // Never 0, which is no step's.
  num_steps_ = num_steps_ == std::numeric_limits<int32_t>::max() ? 1 : num_steps_ + 1;
  step_arrays_->Collect(step->batch, padded.sequences, slots_->requests(), num_steps_);
  DeviceStep device_step;
  device_step.shape = step_arrays_->shape();
  device_step.tile_rows = step_arrays_->tile_rows();
  device_step.sampling = step_arrays_->sampling_needs();
  device_step.sampling_passes = step_arrays_->sampling_passes();
  device_step.rounds_with_draft = step_arrays_->rounds_with_draft();
  device_step.soft_rows = StageSoftRows(*step);
  bool uses_graph = padded.sequences > 0 && options_.use_graphs && !options_.synchronous &&
                    !step->batch.return_logits && !step->batch.return_drafts &&
                    device_step.sampling_passes.size() == 1 && device_step.soft_rows.empty();
  if (uses_graph) {
    const StepShape graph_shape = GraphShape(padded);
    uses_graph = device_step.shape.FitsInto(graph_shape);
    if (uses_graph) device_step.shape = graph_shape;
  }
  step->masked = step_arrays_->masked();
  step->has_advanced = step->masked.empty();
  if (!step->masked.empty()) {
    device_step.masks = masks_->masks();
    device_step.ids_out = published_.As<int32_t>() + 1;
    device_step.number_out = published_.As<int32_t>();
    device_step.before_sampling = [&] { MakeMasks(*step, device_step); };
    uses_graph &= device_step.shape.outputs <= ForwardLimits(options_).max_logit_rows;
    device_step.defers_sampling = uses_graph;
  }
  device_step.offsets = LayOutStep(device_step.shape);
  Upload(*step, device_step.offsets);
  device_step.arrays = arrays_.As<std::byte>();
  if (step->batch.return_logits) {
    const int64_t num_bytes = int64_t{device_step.shape.outputs} * plan_.vocab_size * sizeof(float);
    if (step->logits.num_bytes() < num_bytes) step->logits = PinnedBuffer(num_bytes, "logits");
    device_step.logits_out = step->logits.As<float>();
  }
  if (step->batch.return_drafts) ReserveDrafts(*step, device_step);
  {
    std::optional<DeviceTurn> turn;
    if (forward_->TakesAllSms(device_step)) turn.emplace(device_, stream_.get());
    if (uses_graph) {
      RunOrReplay(padded, device_step);
      if (device_step.defers_sampling) forward_->Sample(context_, device_step);
    } else {
      forward_->Run(context_, device_step);
    }
  }
  const int64_t sampled_bytes = int64_t{device_step.shape.sampled} * sizeof(SampledRow);
  if (sampled_bytes > 0) {
    LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(step->sampled.As<void>(), forward_->sampled(),
                                        sampled_bytes, cudaMemcpyDeviceToHost, stream_.get()));
  }
  if (step->expert_counts.num_bytes() > 0) {
    LAPIDARY_CUDA_CHECK(
        cudaMemcpyAsync(step->expert_counts.As<void>(), forward_->expert_counts().As<void>(),
                        step->expert_counts.num_bytes(), cudaMemcpyDeviceToHost, stream_.get()));
  }
  if (step->batch.return_drafts) {
    LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(
        step->draft_ids.As<void>(), device_step.At<int32_t>(device_step.offsets.token_ids),
        step->batch.token_ids.size() * sizeof(int32_t), cudaMemcpyDeviceToHost, stream_.get()));
  }
  step->done.Record(stream_.get());
  step->first_sampled = step_arrays_->first_sampled();
  for (const SequenceStep& sequence : step->batch.sequences) {
    slots_->requests().CountTokens(sequence.slot, sequence.num_sampled());
  }
  in_flight_.push_back(std::move(step));
} catch (const std::bad_alloc&) {
  // Part of the step may be on the device already: it cannot be taken back.
  throw std::runtime_error("the host has no memory left to begin a step on the device");
}

void CudaExecutor::ForgetSlots() {
  CHECK(in_flight_.empty());
  masks_->Clear();
  slots_->requests().ForgetMedia();
}

void CudaExecutor::MakeMasks(InFlight& step, const DeviceStep& device_step) {
  for (const auto& before : in_flight_) AdvanceMasks(*before);
  std::span<const int32_t> ids = step.batch.token_ids;
  if (device_step.shape.rounds > 0) {
    const auto* number = static_cast<const volatile int32_t*>(device_step.number_out);
    while (*number != num_steps_) {
      const cudaError_t state = cudaStreamQuery(stream_.get());
      if (state != cudaErrorNotReady) LAPIDARY_CUDA_CHECK(state);
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    ids = {device_step.ids_out, step.batch.token_ids.size()};
  }
  std::vector<int32_t> end_row;  // of each sequence
  int32_t num_rows = 0;
  for (const SequenceStep& sequence : step.batch.sequences) {
    end_row.push_back(num_rows += sequence.num_rows);
  }
  const auto drafts_of = [&](int64_t idx) {
    const MaskedSequence& sequence = step.masked[idx];
    const int32_t num_drafts = sequence.num_rows - 1;
    return ids.subspan(end_row[sequence.sequence] - num_drafts, num_drafts);
  };
  masks_->Make(step.masked, drafts_of, stream_.get());
}

void CudaExecutor::AdvanceMasks(InFlight& step) {
  if (std::exchange(step.has_advanced, true)) return;
  step.done.Wait();
  masks_->Advance(step.masked, step.sampled.As<SampledRow>());
}

void CudaExecutor::ReserveDrafts(InFlight& step, DeviceStep& device_step) const {
  step.rounds = step_arrays_->rounds();
  step.rounds_with_draft = step_arrays_->rounds_with_draft();
  int64_t num_drafts = 0;
  for (const int32_t rounds : step.rounds_with_draft) num_drafts += rounds;
  step.draft_logits = PinnedBuffer(num_drafts * plan_.vocab_size * sizeof(float), "drafts");
  step.draft_ids = PinnedBuffer(step.batch.token_ids.size() * sizeof(int32_t), "drafts");
  if (num_drafts > 0) device_step.draft_logits_out = step.draft_logits.As<float>();
}

// Drafts lie as they were made, the first of all rounds before the second ones; the output has them
// sequence by sequence.
void CudaExecutor::TakeDrafts(InFlight& step, StepOutput& output) const {
  const size_t vocab_size = static_cast<size_t>(plan_.vocab_size);
  size_t num_drafts = 0;
  for (const PlannedRound& round : step.rounds) num_drafts += round.num_drafts;
  output.draft_ids.resize(num_drafts);
  output.draft_logits.resize(num_drafts * vocab_size);
  std::vector<size_t> first_row(step.batch.sequences.size() + 1, 0);
  for (size_t idx = 0; idx < step.batch.sequences.size(); ++idx) {
    first_row[idx + 1] = first_row[idx] + step.batch.sequences[idx].num_rows;
  }
  const float* logits = step.draft_logits.As<float>();
  for (size_t draft = 0; draft < step.rounds_with_draft.size(); ++draft) {
    for (int32_t idx = 0; idx < step.rounds_with_draft[draft]; ++idx, logits += vocab_size) {
      const PlannedRound& round = step.rounds[idx];
      const size_t at = round.first_draft + draft;
      output.draft_ids[at] = step.draft_ids.As<int32_t>()[first_row[round.sequence] + 1 + draft];
      std::copy_n(logits, vocab_size, output.draft_logits.data() + at * vocab_size);
    }
  }
}

void CudaExecutor::TakeTokens(const InFlight& step, size_t sequence_idx, SequenceOutput& output) {
  const SequenceStep& sequence = step.batch.sequences[sequence_idx];
  const SampledRow* row = step.sampled.As<SampledRow>() + step.first_sampled[sequence_idx];
  const auto take = [&](int32_t count, std::vector<SampledToken>& to) {
    for (; count > 0; --count, ++row) {
      if (row->status != SamplingStatus::kOk) {
        output.blames_request = row->status != SamplingStatus::kNotFinite;
        output.error = output.blames_request ? "no token may be drawn: every logit is -inf"
                                             : "the logits hold NaN or infinity";
        return false;
      }
      SampledToken& token = to.emplace_back();
      token.id = row->id;
      token.logprob = row->logprob;
      token.num_top = row->num_top;
      for (int idx = 0; idx < row->num_top; ++idx) {
        token.top[idx] = {row->top_ids[idx], row->top_logprobs[idx]};
      }
    }
    return true;
  };
  if (!take(sequence.num_scored, output.scores) || !sequence.samples) return;
  take(row->num_accepted, output.tokens);
}

StepOutput CudaExecutor::Collect() {
  CHECK(!in_flight_.empty());
  std::unique_ptr<InFlight> step = std::move(in_flight_.front());
  in_flight_.pop_front();
  step->done.Wait();
  StepOutput output;
  output.device_ms = step->done.MillisecondsSince(step->began);
  output.sequences.resize(step->batch.sequences.size());
  for (size_t idx = 0; idx < step->batch.sequences.size(); ++idx) {
    TakeTokens(*step, idx, output.sequences[idx]);
  }
  AdvanceMasks(*step);
  for (const MaskedSequence& masked : step->masked) {
    SequenceOutput& sequence = output.sequences[masked.sequence];
    if (std::ssize(sequence.tokens) > masked.num_made) {
      sequence.tokens.resize(masked.num_made);
      sequence.is_late = masked.error.kind == ErrorKind::kBusy;
      if (!sequence.is_late) sequence.error = masked.error.message;
      sequence.blames_request = !sequence.is_late;
    }
  }
  if (step->batch.return_logits) {
    int64_t num_outputs = 0;
    for (const SequenceStep& sequence : step->batch.sequences) num_outputs += sequence.num_outputs;
    const int64_t count = num_outputs * plan_.vocab_size;
    output.logits.assign(step->logits.As<float>(), step->logits.As<float>() + count);
  }
  if (step->batch.return_drafts) TakeDrafts(*step, output);
  if (step->expert_counts.num_bytes() > 0) TakeExpertCounts(*step);
  step->batch = {};
  idle_.push_back(std::move(step));
  return output;
}

void CudaExecutor::TakeExpertCounts(const InFlight& step) const {
  const int num_experts = plan_.moe->num_experts;
  const auto* counts = step.expert_counts.As<uint64_t>();
  for (int layer = 0; layer < plan_.num_layers; ++layer) {
    for (int expert = 0; expert < num_experts; ++expert) {
      options_.expert_counts->Set(layer, expert, counts[int64_t{layer} * num_experts + expert]);
    }
  }
}

Result<std::unique_ptr<Executor>> MakeCudaExecutor(const ModelPlan& plan,
                                                   const TensorSource* source,
                                                   const CudaExecutorOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaExecutor> executor,
                   CudaExecutor::Create(plan, source, options));
  return std::unique_ptr<Executor>(std::move(executor));
}

void CudaExecutor::PoisonPoolForTest() {
  LAPIDARY_CUDA_CHECK(cudaMemsetAsync(pool_.As<void>(), 0xff, pool_.num_bytes(), stream_.get()));
}

int CudaExecutor::num_graphs_for_test() const {
  return static_cast<int>(std::count_if(graphs_.begin(), graphs_.end(), [](const auto& entry) {
    return entry.second.exec != nullptr;
  }));
}

}  // namespace lapidary::cuda
