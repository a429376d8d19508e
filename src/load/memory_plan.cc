#include "load/memory_plan.h"

#include <algorithm>
#include <charconv>

#include "engine/scheduler.h"
#include "executor/cuda/memory_needs.h"
#include "model/shard.h"

namespace lapidary {

namespace {

// What is left behind weights and workspace, in pages and in sequences.
Result<MemoryPlan> FillPool(const ModelPlan& plan, const MemoryRequest& request,
                            MemoryPlan memory) {
  constexpr int64_t kSlidingSlack = SchedulerLimits{}.sliding_slack;
  if (request.kv_cache_bytes > 0) {
    memory.pool_bytes = request.kv_cache_bytes;
  } else {
    memory.usable_bytes = cuda::UsableBytes(request.memory_bytes, request.cuda.memory);
    memory.pool_bytes =
        memory.usable_bytes - memory.weight_bytes - memory.tower_bytes - memory.workspace_bytes;
  }
  memory.num_pages = memory.pool_bytes / memory.layout.page_bytes;
  if (memory.num_pages < 2) {
    return MakeError(
        "{:.2f} GB usable leave no room for KV: the weights take {:.2f} GB, the workspace {:.2f} "
        "GB "
        "and a page {:.2f} MB",
        1e-9 * static_cast<double>(memory.usable_bytes),
        1e-9 * static_cast<double>(memory.weight_bytes),
        1e-9 * static_cast<double>(memory.workspace_bytes),
        1e-6 * static_cast<double>(memory.layout.page_bytes));
  }
  memory.pages_per_sequence =
      PagesForSequence(plan, memory.layout, memory.max_model_len, kSlidingSlack);
  const int64_t pages = memory.num_pages - 1;
  memory.max_sequences = pages / memory.pages_per_sequence;
  memory.max_tokens = memory.max_sequences * memory.max_model_len;
  // The longest sequence that the rest holds.
  int64_t shortest = 0;
  int64_t too_long = memory.max_model_len;
  const int64_t rest = pages % memory.pages_per_sequence;
  while (too_long - shortest > 1) {
    const int64_t middle = (shortest + too_long) / 2;
    const bool fits = PagesForSequence(plan, memory.layout, middle, kSlidingSlack) <= rest;
    (fits ? shortest : too_long) = middle;
  }
  memory.max_tokens += shortest;
  for (const int64_t wasted : memory.layout.wasted_bytes) {
    memory.waste = std::max(
        memory.waste, static_cast<double>(wasted) / static_cast<double>(memory.layout.page_bytes));
  }
  return memory;
}

WeightPlan WeightsOf(const ModelPlan& plan, const MemoryRequest& request, WeightReader reader) {
  return request.weights ? *request.weights : WeightPlan::OfDummies(RequiredTensors(plan), reader);
}

// Floats of the rows of the largest step on their way through the decoder, and of their logits.
int64_t CpuWorkspace(const ModelPlan& plan, const BatchLimits& limits) {
  int64_t queries = 0, entries = 0, width = 0;
  for (const LayerPlan& layer : plan.layers) {
    queries = std::max(queries, int64_t{layer.num_heads} * layer.head_dim);
    entries = std::max(entries, int64_t{layer.num_kv_heads} * layer.kv_entry.entry_len);
    width = std::max<int64_t>(width, layer.mlp_width);
  }
  const int64_t hidden = plan.hidden_size;
  int64_t row = 4 * hidden + 3 * queries + 3 * entries + 2 * width;
  if (plan.ple) row += int64_t{2} * plan.num_layers * plan.ple->width;
  if (plan.moe) row += plan.moe->top_k * (2 * hidden + int64_t{2} * plan.moe->expert_width);
  const int64_t logits = int64_t{limits.max_num_seqs} * plan.vocab_size;
  return static_cast<int64_t>(sizeof(float)) * (limits.max_num_batched_tokens * row + logits);
}

// Of the formats that the CPU reads.
CutUnits CutUnitsOf(const WeightPlan& weights) {
  CutUnits units;
  for (const PlannedWeight& weight : weights.weights()) {
    if (weight.is_matrix()) units[weight.spec.name] = CutUnitOf(weight.loaded);
  }
  return units;
}

int64_t BytesOfRank(const Shard& shard, const WeightPlan& weights) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : RequiredTensors(shard.plan)) {
    const int64_t cols = spec.shape.back();
    bytes += BytesOf(weights.Of(spec).loaded, spec.num_elements() / cols, cols).total();
  }
  return bytes;
}

}  // namespace

Result<MemoryPlan> PlanMemory(const ModelPlan& plan, const MemoryRequest& request) {
  ASSIGN_OR_RETURN(const BatchLimits limits,
                   CompleteLimits(request.limits, plan, DeviceKind::kCuda));
  cuda::CudaExecutorOptions options = request.cuda;
  options.max_num_seqs = limits.max_num_seqs;
  options.max_num_batched_tokens = limits.max_num_batched_tokens;
  MemoryPlan memory;
  ASSIGN_OR_RETURN(const KvFormat kv_format, ChooseKvFormat(request.kv_format, DeviceKind::kCuda));
  memory.layout = MakeKvLayout(plan, kv_format);
  memory.max_model_len = limits.max_model_len;
  const WeightPlan weights = WeightsOf(plan, request, WeightReader::kGpu);
  std::optional<WeightPlan> drafter;
  if (options.drafter) {
    const AssistantPlan& assistant = options.drafter->plan;
    ASSIGN_OR_RETURN(drafter,
                     WeightPlan::Make(RequiredTensors(assistant), options.drafter->source.get(),
                                      RequestOfDrafter(assistant, weights)));
  }
  const cuda::ExecutorLimits steps =
      cuda::LimitsOf(cuda::WithRoomForPadding(options), request.num_sms, weights, drafter);
  memory.weight_bytes = cuda::PlanWeights(weights, options.ple_placement).on_device();
  memory.tower_bytes = request.tower_bytes;
  memory.workspace_bytes = cuda::PlanWorkspace(plan, memory.layout, steps.forward).total();
  if (drafter) {
    memory.weight_bytes += cuda::PlanWeights(*drafter, cuda::PlePlacement::kDevice).on_device();
    memory.workspace_bytes += cuda::PlanDrafter(options.drafter->plan, steps.drafting).total();
  }
  return FillPool(plan, request, std::move(memory));
}

Result<MemoryPlan> PlanCpuMemory(const ModelPlan& plan, const MemoryRequest& request) {
  ASSIGN_OR_RETURN(const BatchLimits limits,
                   CompleteLimits(request.limits, plan, DeviceKind::kCpu));
  ASSIGN_OR_RETURN(const KvFormat kv_format, ChooseKvFormat(request.kv_format, DeviceKind::kCpu));
  const WeightPlan weights = WeightsOf(plan, request, WeightReader::kCpu);
  MemoryPlan memory;
  memory.max_model_len = limits.max_model_len;
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    ASSIGN_OR_RETURN(const Shard shard,
                     ShardOf(plan, rank, request.num_ranks, CutUnitsOf(weights)));
    memory.layout = MakeKvLayout(shard.plan, kv_format);  // the same of all
    memory.weight_bytes = std::max(memory.weight_bytes, BytesOfRank(shard, weights));
    memory.workspace_bytes = std::max(memory.workspace_bytes, CpuWorkspace(shard.plan, limits));
  }
  if (request.cuda.drafter) {
    ASSIGN_OR_RETURN(const AssistantShard drafter,
                     ShardOf(request.cuda.drafter->plan, 0, request.num_ranks));
    memory.weight_bytes +=
        WeightPlan::OfDummies(RequiredTensors(drafter.plan), WeightReader::kCpu).loaded_bytes();
  }
  return FillPool(plan, request, std::move(memory));
}

Result<int64_t> ParseBytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  static constexpr Unit kUnits[] = {{"KiB", 1024.0},
                                    {"MiB", 1048576.0},
                                    {"GiB", 1073741824.0},
                                    {"TiB", 1099511627776.0},
                                    {"kB", 1e3},
                                    {"KB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12},
                                    {"B", 1.0},
                                    {"", 1.0}};
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  while (suffix.starts_with(' ')) suffix.remove_prefix(1);
  for (const Unit& unit : kUnits) {
    const double bytes = number * unit.bytes;
    if (error == std::errc() && suffix == unit.name && bytes >= 0 && bytes < 9e18) {
      return static_cast<int64_t>(bytes);
    }
  }
  return MakeError("'{}' is not an amount of memory such as 80GB, 143771MiB or 1.5GiB",
                   text.substr(0, 40));
}

}  // namespace lapidary
