// `lapidary plan`: what fits into a memory, before anything is loaded.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "apps/commands.h"
#include "apps/draft_flags.h"
#include "apps/load_flags.h"
#include "apps/media_flags.h"
#include "apps/named_models.h"
#include "apps/size_words.h"
#include "device/device_choice.h"
#include "load/drafting.h"
#include "load/memory_plan.h"
#include "load/model_directory.h"
#include "load/stored_weights.h"
#include "towers/cuda/tower_memory.h"

namespace lapidary {
namespace {

struct PlanFlags {
  std::string model;
  std::string memory;
  std::string kv_cache_memory;
  std::string limit_mm_per_prompt = kDefaultMediaLimits;
  std::string device;  // empty: a GPU, unless only the CPU runs such weights
  LoadFlags load;
  MemoryRequest request;
  DraftFlags drafting;
  bool json = false;
};

Json PlanJson(const MemoryPlan& plan, const PlanFlags& flags) {
  Json json;
  json["device"] = flags.device;
  json["ranks"] = flags.request.num_ranks;
  json["memory_bytes"] = flags.request.memory_bytes;
  json["utilization"] = flags.request.cuda.memory.share;
  json["usable_bytes"] = plan.usable_bytes;
  json["weight_bytes"] = plan.weight_bytes;
  json["tower_bytes"] = plan.tower_bytes;
  json["workspace_bytes"] = plan.workspace_bytes;
  json["pool_bytes"] = plan.pool_bytes;
  json["pages"] = plan.num_pages;
  json["page_bytes"] = plan.layout.page_bytes;
  json["kv_cache_dtype"] = KvFormatName(plan.layout.format);
  json["tokens_per_page"] = {{"sliding", plan.layout.tokens_per_page[kSlidingGroup]},
                             {"full", plan.layout.tokens_per_page[kFullGroup]}};
  json["max_model_len"] = plan.max_model_len;
  json["pages_per_sequence"] = plan.pages_per_sequence;
  json["max_tokens"] = plan.max_tokens;
  json["max_sequences"] = plan.max_sequences;
  json["waste"] = plan.waste;
  return json;
}

void PrintPlan(const MemoryPlan& plan, const PlanFlags& flags) {
  const auto gigabytes = [](const char* name, int64_t bytes) {
    fmt::print("{:<28}{:>12.3f} GB\n", name, 1e-9 * static_cast<double>(bytes));
  };
  if (flags.request.num_ranks > 1) {
    fmt::print("{:<28}{:>12}, of which each has\n", "ranks", flags.request.num_ranks);
  }
  if (flags.request.kv_cache_bytes == 0) {
    gigabytes("memory", flags.request.memory_bytes);
    gigabytes("usable", plan.usable_bytes);
    gigabytes("- weights", plan.weight_bytes);
    if (plan.tower_bytes > 0) gigabytes("- images and audio", plan.tower_bytes);
    gigabytes("- workspace", plan.workspace_bytes);
  }
  gigabytes("KV pool", plan.pool_bytes);
  fmt::print("{:<28}{:>12}\n", "KV format", KvFormatName(plan.layout.format));
  fmt::print("{:<28}{:>12} of {:.3f} MB (one is scratch)\n", "pages", plan.num_pages,
             1e-6 * static_cast<double>(plan.layout.page_bytes));
  fmt::print("{:<28}{:>12} sliding, {} full\n", "tokens per page",
             plan.layout.tokens_per_page[kSlidingGroup], plan.layout.tokens_per_page[kFullGroup]);
  fmt::print("{:<28}{:>11.2f}%\n", "waste", 100 * plan.waste);
  fmt::print("{:<28}{:>12} of {} tokens\n", "sequences", plan.max_sequences, plan.max_model_len);
  fmt::print("{:<28}{:>12}\n", "tokens", plan.max_tokens);
}

// As `serve` would load them; presets and GGUF files come without.
Result<int64_t> TowerBytes(const ModelDescription& model, const std::string& limit_mm_per_prompt) {
  ASSIGN_OR_RETURN(const MediaLimits limits, ReadMediaLimits(limit_mm_per_prompt));
  if (!model.directory) return 0;
  const TowersPlan towers = FindUsableTowers(model.config, model.name).plan;
  return cuda::TowerDeviceBytes(towers, limits.images + limits.videos > 0, limits.audio > 0);
}

// Of the GPU that the other commands would take.
Result<int64_t> MemoryHere() {
  const DeviceFacts facts = ProbeDeviceFacts();
  ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevice(DeviceRequest::kAuto, facts));
  for (const GpuInfo& gpu : facts.gpu_list.gpus) {
    if (choice.kind != DeviceKind::kCuda || gpu.ordinal != choice.gpu_ordinal) continue;
    spdlog::info("the memory is that of {}", gpu.name);
    return gpu.memory_bytes;
  }
  return MakeError(
      "there is no GPU to ask for its memory ({}): say how much there is, as --memory 80GB or "
      "--kv-cache-memory-bytes 40GB",
      choice.reason);
}

bool HasGpu() {
  const auto choice = ChooseDevice(DeviceRequest::kAuto, ProbeDeviceFacts());
  return choice.ok() && choice->kind == DeviceKind::kCuda;
}

// Settles the device and the formats of the weights there.
Status PlanWeightsOf(const ModelDescription& model, PlanFlags& flags) {
  ASSIGN_OR_RETURN(const auto source, FindStoredWeights(model));
  WeightRequest request{.reader = WeightReader::kGpu,
                        .rounding = flags.load.Options().quantisation,
                        .head_bits = flags.load.Options().head_bits};
  const std::vector<TensorSpec> specs = RequiredTensors(model.plan);
  auto weights = WeightPlan::Make(specs, source.get(), request);
  std::string problem = weights.ok() ? "" : weights.error().message;
  if (flags.device == "cuda" && !problem.empty()) {
    return MakeError("these weights run on the CPU only ({}): leave --device cuda out", problem);
  }
  if (flags.device.empty()) {
    // Quantised weights are planned for the GPU only where there is one.
    const bool is_quantised =
        weights.ok() && std::any_of(weights->weights().begin(), weights->weights().end(),
                                    [](const PlannedWeight& weight) {
                                      return weight.rounding || !weight.stored.is_plain();
                                    });
    flags.device = problem.empty() && (!is_quantised || HasGpu()) ? "cuda" : "cpu";
  }
  if (flags.device == "cpu") {
    request.reader = WeightReader::kCpu;
    weights = WeightPlan::Make(specs, source.get(), request);
  }
  ASSIGN_OR_RETURN(flags.request.weights, std::move(weights));
  return {};
}

Status Plan(PlanFlags& flags) {
  flags.request.num_ranks = flags.load.Options().num_ranks;
  flags.request.kv_format = flags.load.Options().kv_format;
  if (flags.request.num_ranks > 1) {
    if (flags.device == "cuda") {
      return MakeError("--tensor-parallel-size {}: a model runs on one GPU; add --device cpu",
                       flags.request.num_ranks);
    }
    flags.device = "cpu";
  }
  const auto found = FindModel(&flags.model, {.weights = false, .text = false});
  if (!found.ok()) return found.error();
  ASSIGN_OR_RETURN(const ModelDescription model, DescribeModel(flags.model));
  if (!flags.kv_cache_memory.empty()) {
    ASSIGN_OR_RETURN(flags.request.kv_cache_bytes, ParseBytes(flags.kv_cache_memory));
  } else if (flags.memory.empty()) {
    ASSIGN_OR_RETURN(flags.request.memory_bytes, MemoryHere());
  } else {
    ASSIGN_OR_RETURN(flags.request.memory_bytes, ParseBytes(flags.memory));
  }
  ASSIGN_OR_RETURN(flags.request.tower_bytes, TowerBytes(model, flags.limit_mm_per_prompt));
  ASSIGN_OR_RETURN(const DraftingRequest drafting, flags.drafting.Request());
  ASSIGN_OR_RETURN(std::optional<PairedAssistant> assistant,
                   FindPairedAssistant(model, drafting, /*takes_presets=*/model.is_preset()));
  if (assistant) {
    flags.request.cuda.drafter.emplace();
    flags.request.cuda.drafter->plan = std::move(assistant->plan);
    flags.request.cuda.max_drafts = drafting.num_drafts;
  }
  RETURN_IF_ERROR(PlanWeightsOf(model, flags));
  ASSIGN_OR_RETURN(const MemoryPlan plan, flags.device == "cpu"
                                              ? PlanCpuMemory(model.plan, flags.request)
                                              : PlanMemory(model.plan, flags.request));
  if (flags.json) {
    fmt::print("{}\n", PlanJson(plan, flags).dump(2));
  } else {
    PrintPlan(plan, flags);
  }
  return {};
}

}  // namespace

void AddPlanCommand(CommandLine& command_line) {
  auto flags = std::make_shared<PlanFlags>();
  flags->request.limits = {};  // the device's, and the model's context
  CLI::App* command =
      command_line.Add("plan", "Say how many tokens and sequences fit into a memory",
                       [flags] { return Plan(*flags); });
  command
      ->add_option(
          "model", flags->model,
          "Checkpoint directory, GGUF file, model of the Hub, or a preset: e2b e4b 12b 26b-a4b "
          "31b")
      ->required();
  command
      ->add_option("--device", flags->device,
                   "cuda, or cpu: weights as they are stored (default: cuda, but cpu for "
                   "weights that only run there)")
      ->check(CLI::IsMember({"cuda", "cpu"}));
  flags->load.AddTo(*command,
                    {"quantization", "head-bits", "tensor-parallel-size", "kv-cache-dtype"});
  command->add_option("--memory", flags->memory,
                      "The device's memory: 143771MiB, 80GB (1e9 bytes), 64GiB (2^30) (default: "
                      "that of the GPU here)");
  command
      ->add_option("--gpu-memory-utilization", flags->request.cuda.memory.share,
                   "Share of it that may be used")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command
      ->add_option("--gpu-memory", flags->request.cuda.memory.cap,
                   "The most of it that may be used, the driver's part included: 16GB, 24GiB")
      ->transform(SizeWords())
      ->check(CLI::PositiveNumber);
  command
      ->add_option_function<std::string>(
          "--ple",
          [flags](const std::string& place) {
            flags->request.cuda.ple_placement =
                place == "host" ? cuda::PlePlacement::kHost : cuda::PlePlacement::kDevice;
          },
          "Where the per-layer embedding table (E2B, E4B) lives: device, or host (default: device)")
      ->check(CLI::IsMember({"device", "host"}));
  command->add_option("--kv-cache-memory-bytes", flags->kv_cache_memory,
                      "Size of the KV pool itself, instead of --memory");
  command
      ->add_option("--max-model-len", flags->request.limits.max_model_len,
                   "Longest sequence in tokens (default: the model's context, on the CPU at most "
                   "8192)")
      ->transform(SizeWords())
      ->check(CLI::Range(1, 1 << 28));
  command
      ->add_option("--max-num-seqs", flags->request.limits.max_num_seqs,
                   fmt::format("Sequences in one step (default: {}, on the CPU {})",
                               DefaultLimits(DeviceKind::kCuda).max_num_seqs,
                               DefaultLimits(DeviceKind::kCpu).max_num_seqs))
      ->check(CLI::Range(1, 65536));
  command
      ->add_option("--max-num-batched-tokens", flags->request.limits.max_num_batched_tokens,
                   fmt::format("Rows of one step (default: {}, with experts {}, on the CPU {})",
                               DefaultLimits(DeviceKind::kCuda).max_num_batched_tokens,
                               kBatchedTokensWithExperts,
                               DefaultLimits(DeviceKind::kCpu).max_num_batched_tokens))
      ->transform(SizeWords())
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option(
          "--limit-mm-per-prompt", flags->limit_mm_per_prompt,
          "Images, sounds and videos of a prompt, as JSON; towers of what is 0 are not loaded")
      ->capture_default_str();
  flags->drafting.AddAssistantTo(*command);
  command
      ->add_option("--spec-tokens", flags->drafting.spec_tokens,
                   fmt::format("Drafts of a round (default: {})", kDefaultDrafts))
      ->check(CLI::Range(1, int{kMaxDrafts}));
  command->add_flag("--no-spec", flags->drafting.no_spec, "Leave the assistant out");
  command->add_flag("--json", flags->json, "Print one JSON object");
}

}  // namespace lapidary
