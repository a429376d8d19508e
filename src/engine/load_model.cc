#include "engine/load_model.h"

#include <chrono>

#include "executor/cpu/cpu_executor.h"
#include "model/tensor_sources.h"

namespace lapidary {
namespace {

// Pages one sequence of `max_tokens` may hold at once: all of it in the full group; in the sliding
// group its window before and after a chunk.
int PagesForOneSequence(const ModelPlan& plan, const KvLayout& layout, const LoadOptions& options) {
  const int64_t full = options.max_tokens / layout.tokens_per_page[kFullGroup] + 2;
  const int64_t window = plan.kv_groups[kSlidingGroup].window;
  const int64_t sliding = (std::min<int64_t>(options.max_tokens, 2 * window + options.max_chunk)) /
                              layout.tokens_per_page[kSlidingGroup] +
                          4;
  return static_cast<int>(1 + full + sliding);
}

Result<std::shared_ptr<const TensorSource>> OpenWeights(const ModelDescription& model,
                                                        const LoadOptions& options,
                                                        ThreadPool& threads) {
  if (options.format == LoadFormat::kDummy) {
    ASSIGN_OR_RETURN(auto source, DummySource::Make(model.plan, options.dummy_seed, threads));
    return std::shared_ptr<const TensorSource>(std::move(source));
  }
  if (!model.directory) {
    return MakeError(
        "'{}' is a preset without weights: add --load-format dummy, or name a "
        "checkpoint directory",
        model.name);
  }
  ASSIGN_OR_RETURN(auto source, CheckpointSource::Open(*model.directory, model.plan));
  source->Prefault(model.plan, threads);
  return std::shared_ptr<const TensorSource>(std::move(source));
}

}  // namespace

Result<LoadedModel> LoadModel(const std::string& model_or_preset, const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model;
  ASSIGN_OR_RETURN(model.description, DescribeModel(model_or_preset));
  const ModelPlan& plan = model.description.plan;
  std::shared_ptr<const TensorSource> source;
  {
    ThreadPool threads(options.num_threads);
    ASSIGN_OR_RETURN(source, OpenWeights(model.description, options, threads));
  }
  cpu::CpuExecutorOptions executor_options;
  executor_options.num_threads = options.num_threads;
  executor_options.skip_unneeded_rows = options.skip_unneeded_rows;
  executor_options.kv_layout = MakeKvLayout(plan, sizeof(float));
  executor_options.num_pages = PagesForOneSequence(plan, *executor_options.kv_layout, options);
  ASSIGN_OR_RETURN(model.executor,
                   cpu::CpuExecutor::Create(plan, std::move(source), executor_options));
  model.load_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return model;
}

}  // namespace lapidary
