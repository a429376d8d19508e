#include "load/load_model.h"

#include <chrono>

#include "executor/cpu/cpu_executor.h"
#include "load/memory_plan.h"
#include "model/tensor_sources.h"

namespace lapidary {
namespace {

Result<int> NumPages(const ModelPlan& plan, const KvLayout& layout, const LoadOptions& options) {
  constexpr int64_t kMaxPages = int64_t{1} << 30;
  int64_t num_pages = 1 + options.num_sequences * PagesForSequence(plan, layout, options.max_tokens,
                                                                   SchedulerLimits{}.sliding_slack);
  if (options.kv_cache_memory_bytes) num_pages = *options.kv_cache_memory_bytes / layout.page_bytes;
  if (num_pages < 2 || num_pages > kMaxPages) {
    return MakeError("a KV cache of {} pages of {} bytes cannot be used", num_pages,
                     layout.page_bytes);
  }
  return static_cast<int>(num_pages);
}

Error NoWeights(const ModelDescription& model) {
  return MakeError(
      "'{}' is a preset without weights: add --load-format dummy, or name a checkpoint directory",
      model.name);
}

Result<std::shared_ptr<const TensorSource>> OpenWeights(const ModelDescription& model,
                                                        const LoadOptions& options,
                                                        ThreadPool& threads) {
  if (options.format == LoadFormat::kDummy) {
    ASSIGN_OR_RETURN(auto source, DummySource::Make(model.plan, options.dummy_seed, threads));
    return std::shared_ptr<const TensorSource>(std::move(source));
  }
  if (!model.directory) return NoWeights(model);
  ASSIGN_OR_RETURN(auto source, CheckpointSource::Open(*model.directory, model.plan));
  // Readers wait for the disk, not for a core: more of them keep its queue full.
  constexpr int kReaders = 8;
  ThreadPool readers(kReaders);
  source->Prefault(model.plan, readers);
  return std::shared_ptr<const TensorSource>(std::move(source));
}

Result<std::unique_ptr<Executor>> MakeOnCpu(const ModelDescription& model,
                                            const LoadOptions& options) {
  std::shared_ptr<const TensorSource> source;
  {
    ThreadPool threads(options.num_threads);
    ASSIGN_OR_RETURN(source, OpenWeights(model, options, threads));
  }
  cpu::CpuExecutorOptions executor_options;
  executor_options.num_threads = options.num_threads;
  executor_options.skip_unneeded_rows = options.skip_unneeded_rows;
  executor_options.kv_layout = MakeKvLayout(model.plan, sizeof(float));
  ASSIGN_OR_RETURN(executor_options.num_pages,
                   NumPages(model.plan, *executor_options.kv_layout, options));
  ASSIGN_OR_RETURN(auto executor,
                   cpu::CpuExecutor::Create(model.plan, std::move(source), executor_options));
  return std::unique_ptr<Executor>(std::move(executor));
}

Result<std::unique_ptr<Executor>> MakeOnGpu(const ModelDescription& model,
                                            const LoadOptions& options) {
  constexpr int kElementBytes = 2;  // bf16
  cuda::CudaExecutorOptions executor_options = options.cuda;
  executor_options.gpu_ordinal = options.device.gpu_ordinal;
  executor_options.skip_unneeded_rows = options.skip_unneeded_rows;
  executor_options.dummy_seed = options.dummy_seed;
  executor_options.kv_layout = MakeKvLayout(model.plan, kElementBytes);
  if (options.kv_cache_memory_bytes || options.max_tokens > 0) {
    ASSIGN_OR_RETURN(executor_options.num_pages,
                     NumPages(model.plan, *executor_options.kv_layout, options));
  }
  // Dummy weights are made on the GPU; a checkpoint is read page by page as it is uploaded.
  std::unique_ptr<CheckpointSource> source;
  if (options.format != LoadFormat::kDummy) {
    if (!model.directory) return NoWeights(model);
    ASSIGN_OR_RETURN(source, CheckpointSource::Open(*model.directory, model.plan));
  }
  return cuda::MakeCudaExecutor(model.plan, source.get(), executor_options);
}

}  // namespace

Result<LoadedModel> LoadModel(const std::string& model_or_preset, const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model;
  ASSIGN_OR_RETURN(model.description, DescribeModel(model_or_preset));
  ASSIGN_OR_RETURN(model.executor, options.device.kind == DeviceKind::kCuda
                                       ? MakeOnGpu(model.description, options)
                                       : MakeOnCpu(model.description, options));
  model.load_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return model;
}

Result<LoadedEngine> LoadEngine(const std::string& model_or_preset, const LoadOptions& options,
                                const EngineOptions& engine_options) {
  LoadOptions load_options = options;
  load_options.cuda.max_num_seqs = engine_options.limits.max_num_seqs;
  load_options.cuda.max_num_batched_tokens = engine_options.limits.max_num_batched_tokens;
  ASSIGN_OR_RETURN(LoadedModel model, LoadModel(model_or_preset, load_options));
  LoadedEngine loaded;
  loaded.description = std::move(model.description);
  loaded.load_ms = model.load_ms;
  loaded.engine = std::make_unique<Engine>(std::move(model.executor), engine_options);
  return loaded;
}

}  // namespace lapidary
