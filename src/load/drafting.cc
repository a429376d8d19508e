#include "load/drafting.h"

#include "base/read_file.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_source.h"
#include "model/assistant_preset.h"
#include "model/compressed_source.h"
#include "model/converted_source.h"
#include "model/presets.h"
#include "model/tensor_sources.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

bool HoldsConfig(const fs::path& directory) {
  std::error_code error;
  return fs::exists(directory / "config.json", error);
}

// What to load: a directory, a GGUF file, or a preset's configuration.
struct Assistant {
  std::string name;
  std::optional<fs::path> path;
  Json config;
};

Result<Json> ReadConfig(const fs::path& path) {
  if (IsGgufFile(path)) {
    ASSIGN_OR_RETURN(const GgufCheckpoint checkpoint, GgufCheckpoint::Open(path));
    return AssistantConfigFromGguf(checkpoint);
  }
  const fs::path config = path / "config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadFile(config, kMaxConfigFileBytes));
  return ParseJson(text, config.string());
}

Result<std::shared_ptr<const AssistantSource>> OpenAssistant(const PairedAssistant& assistant,
                                                             ThreadPool& threads) {
  using Source = std::shared_ptr<const AssistantSource>;
  if (IsGgufFile(*assistant.path)) {
    ASSIGN_OR_RETURN(GgufCheckpoint checkpoint, GgufCheckpoint::Open(*assistant.path));
    ASSIGN_OR_RETURN(auto file, GgufSource::Open(std::move(checkpoint), assistant.plan));
    return Source(AssistantSource::OfDense(std::move(file)));
  }
  ASSIGN_OR_RETURN(auto source, AssistantSource::Open(*assistant.path, assistant.is_compressed,
                                                      assistant.plan, threads));
  return Source(std::move(source));
}

Result<std::optional<Assistant>> Find(const ModelDescription& model, const DraftingRequest& request,
                                      bool is_dummy) {
  Assistant assistant;
  std::error_code error;
  if (!request.assistant.empty()) {
    assistant.name = request.assistant;
    if (fs::is_directory(request.assistant, error) || IsGgufFile(request.assistant)) {
      assistant.path = request.assistant;
    }
  } else if (is_dummy && request.simulated_accept_length == 0.0) {
    return std::optional<Assistant>();  // Nothing it drafts would be accepted.
  } else if (!model.is_preset()) {
    assistant.path = FindAssistant(model.directory ? *model.directory : *model.gguf_file);
    if (!assistant.path && request.simulated_accept_length > 0.0) {
      return MakeError("there is no assistant beside {}: name one with --spec-model", model.name);
    }
    if (!assistant.path) return std::optional<Assistant>();
    assistant.name = assistant.path->string();
  } else if (is_dummy) {
    assistant.name = model.name;
  } else {
    return std::optional<Assistant>();  // A preset has no weights: nothing to draft for.
  }
  if (assistant.path) {
    ASSIGN_OR_RETURN(assistant.config, ReadConfig(*assistant.path));
  } else if (IsPreset(assistant.name) && is_dummy) {
    ASSIGN_OR_RETURN(assistant.config, AssistantPresetConfig(assistant.name));
  } else {
    return MakeError("the assistant '{}' is no checkpoint directory and no GGUF file",
                     assistant.name);
  }
  return std::optional<Assistant>(std::move(assistant));
}

}  // namespace

std::optional<fs::path> FindAssistant(const fs::path& model) {
  std::error_code error;
  fs::path beside = fs::weakly_canonical(model, error);
  if (IsGgufFile(model)) {
    beside.replace_filename(beside.stem().string() + "-assistant.gguf");
    return IsGgufFile(beside) ? std::optional(beside) : std::nullopt;
  }
  beside += "-assistant";
  if (HoldsConfig(beside)) return beside;
  if (HoldsConfig(model / "assistant")) return model / "assistant";
  return std::nullopt;
}

Result<std::optional<PairedAssistant>> FindPairedAssistant(const ModelDescription& model,
                                                           const DraftingRequest& request,
                                                           bool takes_presets) {
  if (!request.enabled || request.num_drafts == 0 || request.method == DraftMethod::kNgram) {
    return std::optional<PairedAssistant>();
  }
  ASSIGN_OR_RETURN(const std::optional<Assistant> assistant, Find(model, request, takes_presets));
  if (!assistant) return std::optional<PairedAssistant>();
  ASSIGN_OR_RETURN(const AssistantConfig config,
                   ParseAssistantConfig(assistant->config, assistant->name));
  Result<AssistantPlan> plan = PairAssistant(MakeAssistantPlan(config), model.plan);
  if (!plan.ok()) {
    return MakeError("{}: {}{}", assistant->name, plan.error().message,
                     request.assistant.empty() ? ", or leave drafting out with --no-spec" : "");
  }
  return std::optional(
      PairedAssistant{assistant->name, assistant->path, IsQuantised(assistant->config), *plan});
}

bool IsAssistantDirectory(const fs::path& path) {
  if (!HoldsConfig(path)) return false;
  const auto config = ReadConfig(path);
  return config.ok() && ParseAssistantConfig(*config, path.string()).ok();
}

Result<UnpairedAssistant> OpenUnpairedAssistant(const fs::path& directory, ThreadPool& threads) {
  ASSIGN_OR_RETURN(const Json json, ReadConfig(directory));
  ASSIGN_OR_RETURN(const AssistantConfig config, ParseAssistantConfig(json, directory.string()));
  UnpairedAssistant assistant;
  assistant.plan = MakeAssistantPlan(config);
  if (IsQuantised(json)) {
    ASSIGN_OR_RETURN(auto stored, CompressedSource::Open(directory, assistant.plan));
    ASSIGN_OR_RETURN(assistant.source,
                     ConvertForCpu(RequiredTensors(assistant.plan), std::move(stored),
                                   {.rounds_float_codes = true}, threads));
  } else {
    ASSIGN_OR_RETURN(assistant.source, CheckpointSource::Open(directory, assistant.plan));
  }
  return assistant;
}

Result<std::optional<LoadedDrafter>> LoadDrafter(const ModelDescription& model,
                                                 const DraftingRequest& request,
                                                 std::optional<uint64_t> dummy_seed,
                                                 ThreadPool& threads) {
  ASSIGN_OR_RETURN(std::optional<PairedAssistant> assistant,
                   FindPairedAssistant(model, request, dummy_seed.has_value()));
  if (!assistant) return std::optional<LoadedDrafter>();
  LoadedDrafter drafter;
  drafter.name = assistant->name;
  DrafterOptions& options = drafter.options;
  options.plan = assistant->plan;
  if (dummy_seed) {
    ASSIGN_OR_RETURN(options.source,
                     AssistantSource::MakeDummy(options.plan, *dummy_seed, threads));
  } else {
    ASSIGN_OR_RETURN(options.source, OpenAssistant(*assistant, threads));
  }
  options.position = request.position;
  options.draw = request.draw;
  if (request.simulated_accept_length > 0.0) {
    if (request.simulated_accept_length < 1.0 ||
        request.simulated_accept_length > request.num_drafts + 1.0) {
      return MakeError("a round of {} drafts gives 1 to {} tokens; {} cannot be simulated",
                       request.num_drafts, request.num_drafts + 1, request.simulated_accept_length);
    }
    options.simulated_rates = SimulatedRates(request.simulated_schedule,
                                             request.simulated_accept_length, request.num_drafts);
  }
  return std::optional<LoadedDrafter>(std::move(drafter));
}

}  // namespace lapidary
