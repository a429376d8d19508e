#include "load/drafting.h"

#include "base/read_file.h"
#include "model/assistant_preset.h"
#include "model/presets.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

bool HoldsConfig(const fs::path& directory) {
  std::error_code error;
  return fs::exists(directory / "config.json", error);
}

// What to load: a directory, or a preset's configuration.
struct Assistant {
  std::string name;
  std::optional<fs::path> directory;
  Json config;
};

Result<std::optional<Assistant>> Find(const ModelDescription& model, const DraftingRequest& request,
                                      bool is_dummy) {
  Assistant assistant;
  std::error_code error;
  if (!request.assistant.empty()) {
    assistant.name = request.assistant;
    if (fs::is_directory(request.assistant, error)) assistant.directory = request.assistant;
  } else if (is_dummy && request.simulated_accept_length == 0.0) {
    return std::optional<Assistant>();  // Nothing it drafts would be accepted.
  } else if (model.directory) {
    assistant.directory = FindAssistant(*model.directory);
    if (!assistant.directory && request.simulated_accept_length > 0.0) {
      return MakeError("there is no assistant beside {}: name one with --spec-model", model.name);
    }
    if (!assistant.directory) return std::optional<Assistant>();
    assistant.name = assistant.directory->string();
  } else if (is_dummy) {
    assistant.name = model.name;
  } else {
    return std::optional<Assistant>();  // A preset has no weights: nothing to draft for.
  }
  if (assistant.directory) {
    const fs::path path = *assistant.directory / "config.json";
    ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
    ASSIGN_OR_RETURN(assistant.config, ParseJson(text, path.string()));
  } else if (IsPreset(assistant.name) && is_dummy) {
    ASSIGN_OR_RETURN(assistant.config, AssistantPresetConfig(assistant.name));
  } else {
    return MakeError("the assistant '{}' is no checkpoint directory", assistant.name);
  }
  return std::optional<Assistant>(std::move(assistant));
}

}  // namespace

std::optional<fs::path> FindAssistant(const fs::path& model) {
  std::error_code error;
  fs::path beside = fs::weakly_canonical(model, error);
  beside += "-assistant";
  if (HoldsConfig(beside)) return beside;
  if (HoldsConfig(model / "assistant")) return model / "assistant";
  return std::nullopt;
}

Result<std::optional<PairedAssistant>> FindPairedAssistant(const ModelDescription& model,
                                                           const DraftingRequest& request,
                                                           bool takes_presets) {
  if (!request.enabled || request.num_drafts == 0) return std::optional<PairedAssistant>();
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
      PairedAssistant{assistant->name, assistant->directory, std::move(plan).value()});
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
  options.plan = std::move(assistant->plan);
  if (dummy_seed) {
    ASSIGN_OR_RETURN(options.source,
                     AssistantSource::MakeDummy(options.plan, *dummy_seed, threads));
  } else {
    ASSIGN_OR_RETURN(options.source, AssistantSource::Open(*assistant->directory, options.plan));
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
