#include "load/load_model.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/memory_limit.h"
#include "device/device_probe.h"
#include "executor/cpu/cpu_executor.h"
#include "load/memory_plan.h"
#include "load/stored_weights.h"
#include "model/converted_source.h"
#include "model/shard.h"
#include "model/tensor_sources.h"

namespace lapidary {
namespace {

constexpr int kSlidingSlack = SchedulerLimits{}.sliding_slack;

// Room for max_num_seqs full contexts within a quarter of the machine's memory, which ranks share,
// but for one in any case.
int64_t DefaultPages(const ModelPlan& plan, const KvLayout& layout, const BatchLimits& limits,
                     int num_ranks) {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const int64_t per_context = PagesForSequence(plan, layout, limits.max_model_len, kSlidingSlack);
  const int64_t affordable =
      std::min(limits.max_num_seqs * per_context, memory / 4 / (layout.page_bytes * num_ranks));
  return std::max(affordable, per_context);
}

// Before the weights are read: a KV cache that the device cannot hold whatever they take.
Status CheckKvMemory(const LoadOptions& options) {
  // A simulated cache takes no memory.
  if (!options.kv_cache_memory_bytes || options.device.kind == DeviceKind::kSimulated) return {};
  const bool is_gpu = options.device.kind == DeviceKind::kCuda;
  int64_t memory = MemoryLimit();
  if (is_gpu) {
    for (const GpuInfo& gpu : ListGpus().gpus) {
      if (gpu.ordinal == options.device.gpu_ordinal) memory = gpu.memory_bytes;
    }
  }
  if (*options.kv_cache_memory_bytes <= memory) return {};
  return MakeError("--kv-cache-memory-bytes {:.1f} GB is more than the {:.1f} GB of memory that {}",
                   1e-9 * static_cast<double>(*options.kv_cache_memory_bytes),
                   1e-9 * static_cast<double>(memory),
                   is_gpu ? "the GPU has" : "this process may use");
}

// With the scratch page. None: what a GPU's memory leaves.
Result<std::optional<int>> NumPages(const ModelPlan& plan, const KvLayout& layout,
                                    const LoadOptions& options) {
  constexpr int64_t kMaxPages = int64_t{1} << 30;
  int64_t num_pages = 0;
  if (options.kv_cache_memory_bytes) {
    num_pages = *options.kv_cache_memory_bytes / layout.page_bytes;
  } else if (options.max_tokens > 0) {
    num_pages = 1 + options.num_sequences *
                        PagesForSequence(plan, layout, options.max_tokens, kSlidingSlack);
  } else if (options.device.kind != DeviceKind::kCpu) {
    return std::optional<int>();
  } else {
    num_pages = 1 + DefaultPages(plan, layout, options.limits, options.num_ranks);
  }
  if (num_pages < 2 || num_pages > kMaxPages) {
    return MakeError(
        "a KV cache of {} pages of {} bytes cannot be used: --kv-cache-memory-bytes must hold 2 to "
        "{} "
        "of them",
        num_pages, layout.page_bytes, kMaxPages);
  }
  return std::optional<int>(static_cast<int>(num_pages));
}

Result<std::shared_ptr<const TensorSource>> OpenStored(const ModelDescription& model,
                                                       const LoadOptions& options,
                                                       ThreadPool& threads) {
  if (options.format == LoadFormat::kDummy) {
    ASSIGN_OR_RETURN(auto source, DummySource::Make(model.plan, options.dummy_seed, threads));
    return std::shared_ptr<const TensorSource>(std::move(source));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const TensorSource> source, OpenStoredWeights(model));
  // Readers wait for the disk, not for a core: more of them keep its queue full.
  constexpr int kReaders = 8;
  ThreadPool readers(
      PlaceThreads(CpuTopology::OfThisMachine(), kReaders, options.numa, /*pin=*/false));
  PrefaultWeights(model.plan, *source, readers);
  return source;
}

Result<std::optional<LoadedDrafter>> OpenDrafter(const ModelDescription& model,
                                                 const LoadOptions& options, ThreadPool& threads) {
  const bool is_dummy = options.format == LoadFormat::kDummy;
  return LoadDrafter(model, options.drafting,
                     is_dummy ? std::optional(options.dummy_seed) : std::nullopt, threads);
}

void LogPlacement(const ThreadPlacement& placement) {
  if (placement.num_shares > 1) {
    spdlog::info("{} threads on {} NUMA nodes", placement.num_threads, placement.num_shares);
  }
}

// What the first rank has of a model, and of its KV every rank. Widths, which formats with blocks
// cut otherwise, do not matter to a layout.
Result<ModelPlan> PlanOfRank(const ModelPlan& plan, int num_ranks) {
  Result<Shard> shard = ShardOf(plan, 0, num_ranks);
  if (!shard.ok()) {
    return MakeError("--tensor-parallel-size {}: {}", num_ranks, shard.error().message);
  }
  return std::move(shard->plan);
}

Result<std::unique_ptr<Executor>> MakeOnCpu(const LoadOptions& options, LoadedModel& loaded) {
  const ModelDescription& model = loaded.description;
  ASSIGN_OR_RETURN(const ModelPlan of_rank, PlanOfRank(model.plan, options.num_ranks));
  cpu::CpuExecutorOptions executor_options;
  // The same for loading and for running: weights made here are where they will be read.
  const ThreadPlacement placement = PlaceThreads(CpuTopology::OfThisMachine(), options.num_threads,
                                                 options.numa, options.pin_threads);
  LogPlacement(placement);
  std::shared_ptr<const TensorSource> source;
  {
    ThreadPool threads(placement);
    ASSIGN_OR_RETURN(std::optional<LoadedDrafter> drafter, OpenDrafter(model, options, threads));
    ASSIGN_OR_RETURN(source, OpenStored(model, options, threads));
    ASSIGN_OR_RETURN(const WeightPlan weights,
                     WeightPlan::Make(RequiredTensors(model.plan), source.get(),
                                      {.reader = WeightReader::kCpu,
                                       .rounding = options.quantisation,
                                       .head_bits = options.head_bits}));
    ASSIGN_OR_RETURN(source, ConvertedSource::Wrap(weights, std::move(source), threads,
                                                   /*release_stored=*/true));
    spdlog::info("weights on the CPU: {}", weights.Summary());
    loaded.weights = MakeFootprint(model.plan, weights);
    loaded.weight_table = TabulateWeights(weights);
    if (drafter) {
      loaded.assistant = drafter->name;
      executor_options.drafter = std::move(drafter->options);
    }
  }
  if (DraftsRepeatedText(options.drafting)) executor_options.lookup = options.drafting.lookup;
  executor_options.placement = placement;
  executor_options.skip_unneeded_rows = options.skip_unneeded_rows;
  executor_options.fast_math = options.fast_math;
  executor_options.release_repacked = true;
  executor_options.expert_counts = options.expert_counts;
  executor_options.num_ranks = options.num_ranks;
  ASSIGN_OR_RETURN(const KvFormat kv_format, ChooseKvFormat(options.kv_format, DeviceKind::kCpu));
  executor_options.kv_layout = MakeKvLayout(of_rank, kv_format);
  ASSIGN_OR_RETURN(const std::optional<int> num_pages,
                   NumPages(model.plan, *executor_options.kv_layout, options));
  executor_options.num_pages = *num_pages;
  ASSIGN_OR_RETURN(auto executor,
                   cpu::CpuExecutor::Create(model.plan, std::move(source), executor_options));
  return std::unique_ptr<Executor>(std::move(executor));
}

Result<std::unique_ptr<Executor>> MakeOnGpu(const LoadOptions& options, LoadedModel& loaded) {
  const ModelDescription& model = loaded.description;
  if (options.fast_math) {
    return MakeError("--fast-math rounds activations on the CPU only; add --device cpu");
  }
  if (options.num_ranks != 1) {
    return MakeError(
        "--tensor-parallel-size {}: a model runs on one GPU; start a server on each, or add "
        "--device cpu",
        options.num_ranks);
  }
  if (options.drafting.enabled && options.drafting.method == DraftMethod::kNgram) {
    return MakeError(
        "--spec-method ngram: text that repeats is drafted on a CPU only; leave it out, or add "
        "--device cpu");
  }
  ASSIGN_OR_RETURN(const KvFormat kv_format, ChooseKvFormat(options.kv_format, DeviceKind::kCuda));
  // Dummy weights are made on the GPU; a checkpoint is read page by page as it is uploaded.
  std::shared_ptr<const TensorSource> source;
  if (options.format != LoadFormat::kDummy) {
    ASSIGN_OR_RETURN(source, OpenStoredWeights(model));
  }
  auto weights = WeightPlan::Make(RequiredTensors(model.plan), source.get(),
                                  {.reader = WeightReader::kGpu,
                                   .rounding = options.quantisation,
                                   .head_bits = options.head_bits});
  if (!weights.ok()) {
    return MakeError("{}: {}; or add --device cpu", model.name, weights.error().message);
  }
  spdlog::info("weights on the GPU: {}", weights->Summary());
  loaded.weights = MakeFootprint(model.plan, *weights);
  loaded.weight_table = TabulateWeights(*weights);
  cuda::CudaExecutorOptions executor_options = options.cuda;
  executor_options.gpu_ordinal = options.device.gpu_ordinal;
  executor_options.skip_unneeded_rows = options.skip_unneeded_rows;
  executor_options.expert_counts = options.expert_counts;
  executor_options.dummy_seed = options.dummy_seed;
  executor_options.quantisation = options.quantisation;
  executor_options.head_bits = options.head_bits;
  executor_options.max_num_seqs = options.limits.max_num_seqs;
  executor_options.max_num_batched_tokens = options.limits.max_num_batched_tokens;
  executor_options.kv_layout = MakeKvLayout(model.plan, kv_format);
  ASSIGN_OR_RETURN(executor_options.num_pages,
                   NumPages(model.plan, *executor_options.kv_layout, options));
  ThreadPool threads(options.num_threads);
  ASSIGN_OR_RETURN(std::optional<LoadedDrafter> drafter, OpenDrafter(model, options, threads));
  if (drafter) {
    loaded.assistant = drafter->name;
    executor_options.drafter = std::move(drafter->options);
    executor_options.max_drafts = options.drafting.num_drafts;
  }
  return cuda::MakeCudaExecutor(model.plan, source.get(), executor_options);
}

// What changes the cost of a step in a way that was not measured, or needs weights.
Status CheckSimulated(const ModelDescription& model, const LoadOptions& options) {
  const auto refuse = [](std::string_view what) {
    return MakeError(
        "--device simulated: steps were measured in bf16 on one card without drafts, so {} cannot "
        "be simulated; leave it out",
        what);
  };
  if (options.quantisation || options.head_bits != 0 || options.fast_math) {
    return refuse("quantisation");
  }
  if (options.num_ranks != 1) return refuse("--tensor-parallel-size");
  if (options.expert_counts != nullptr) return refuse("--expert-counts");
  const DraftingRequest& drafting = options.drafting;
  if (drafting.enabled &&
      (!drafting.assistant.empty() || drafting.method != DraftMethod::kAssistant)) {
    return refuse("speculative decoding");
  }
  if (model.gguf_file || model.is_compressed()) {
    return MakeError(
        "--device simulated: steps were measured in bf16; name a preset or an unquantised "
        "checkpoint instead of {}",
        model.name);
  }
  return {};
}

Result<std::unique_ptr<Executor>> MakeSimulated(const LoadOptions& options, LoadedModel& loaded) {
  const ModelDescription& model = loaded.description;
  const simulated::SimulationOptions& simulation = options.simulation;
  CHECK(simulation.card != nullptr);
  RETURN_IF_ERROR(CheckSimulated(model, options));
  ASSIGN_OR_RETURN(const simulated::ModelTimings* timings,
                   simulated::FindTimings(*simulation.card, model.plan));
  const WeightPlan weights = WeightPlan::OfDummies(RequiredTensors(model.plan), WeightReader::kGpu);
  loaded.weights = MakeFootprint(model.plan, weights);
  loaded.weight_table = TabulateWeights(weights);
  simulated::SimulatedExecutorOptions executor_options;
  ASSIGN_OR_RETURN(const KvFormat kv_format,
                   ChooseKvFormat(options.kv_format, DeviceKind::kSimulated));
  executor_options.kv_layout = MakeKvLayout(model.plan, kv_format);
  ASSIGN_OR_RETURN(std::optional<int> num_pages,
                   NumPages(model.plan, executor_options.kv_layout, options));
  if (!num_pages) {
    MemoryRequest request;
    request.memory_bytes = simulation.card->memory_bytes;
    request.num_sms = simulation.card->num_sms;
    request.limits = options.limits;
    request.cuda = options.cuda;
    ASSIGN_OR_RETURN(const MemoryPlan memory, PlanMemory(model.plan, request));
    num_pages = static_cast<int>(memory.num_pages);
  }
  executor_options.num_pages = *num_pages;
  executor_options.timings = *timings;
  executor_options.vocabulary = simulation.vocabulary;
  executor_options.vocabulary.size = model.plan.vocab_size;
  executor_options.clock = std::make_shared<simulated::ScaledClock>(simulation.speed);
  spdlog::warn("answers are made up: no weights are read, and steps take as long as on an {}{}",
               simulation.card->title,
               simulation.speed == 1.0 ? "" : fmt::format(", divided by {}", simulation.speed));
  return std::unique_ptr<Executor>(
      std::make_unique<simulated::SimulatedExecutor>(model.plan, std::move(executor_options)));
}

Result<std::unique_ptr<Executor>> MakeExecutor(const LoadOptions& options, LoadedModel& loaded) {
  switch (options.device.kind) {
    case DeviceKind::kCuda:
      return MakeOnGpu(options, loaded);
    case DeviceKind::kSimulated:
      return MakeSimulated(options, loaded);
    case DeviceKind::kCpu:
      break;
  }
  return MakeOnCpu(options, loaded);
}

}  // namespace

Result<LoadedModel> LoadModel(ModelDescription description, const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(CheckKvMemory(options));
  LoadedModel model;
  model.description = std::move(description);
  LoadOptions complete = options;
  ASSIGN_OR_RETURN(complete.limits,
                   CompleteLimits(options.limits, model.description.plan, options.device.kind));
  model.limits = complete.limits;
  ASSIGN_OR_RETURN(model.executor, MakeExecutor(complete, model));
  model.load_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return model;
}

Result<LoadedEngine> LoadEngine(ModelDescription description, const LoadOptions& options,
                                const EngineOptions& engine_options) {
  ASSIGN_OR_RETURN(LoadedModel model, LoadModel(std::move(description), options));
  EngineOptions limited = engine_options;
  limited.limits.max_num_seqs = model.limits.max_num_seqs;
  limited.limits.max_num_batched_tokens = model.limits.max_num_batched_tokens;
  limited.limits.max_model_len = model.limits.max_model_len;
  if (options.drafting.enabled) limited.limits.num_forced_drafts = kMaxDrafts;
  if (DraftsRepeatedText(options.drafting)) {
    limited.limits.num_ngram_drafts = options.drafting.num_drafts;
  }
  // Simulated rates are for rounds of one length.
  limited.adapt_drafts = options.drafting.enabled && options.drafting.adapt &&
                         options.drafting.simulated_accept_length == 0.0;
  if (!model.assistant.empty()) {
    limited.limits.num_drafts = options.drafting.num_drafts;
    spdlog::info("drafting {}{} tokens a round with {}", limited.adapt_drafts ? "up to " : "",
                 limited.limits.num_drafts, model.assistant);
  }
  LoadedEngine loaded;
  loaded.description = std::move(model.description);
  loaded.assistant = model.assistant;
  loaded.limits = model.limits;
  loaded.weights = model.weights;
  loaded.weight_table = std::move(model.weight_table);
  loaded.load_ms = model.load_ms;
  loaded.engine = std::make_unique<Engine>(std::move(model.executor), limited);
  return loaded;
}

}  // namespace lapidary
