#include "apps/named_models.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "apps/bundled_models.h"
#include "apps/interrupts.h"
#include "hub/fetch_model.h"
#include "hub/known_models.h"
#include "load/drafting.h"
#include "load/model_directory.h"
#include "model/presets.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

// Marks a name that -hf gave; no name of a file or of the Hub begins so.
constexpr std::string_view kGgufMark = "hf-gguf:";

std::atomic<bool> interrupted = false;

// While it lives, Ctrl-C sets `interrupted`.
class InterruptFlag {
 public:
  InterruptFlag() {
    previous_ = std::signal(SIGINT, [](int) { interrupted = true; });
  }
  ~InterruptFlag() { std::signal(SIGINT, previous_); }
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

 private:
  void (*previous_)(int);
};

Result<hub::FetchedModel> Fetch(const hub::HubSettings& settings,
                                const hub::FetchRequest& request) {
  auto fetched = [&] {
    const InterruptFlag flag;
    return hub::FetchModel(settings, request, interrupted);
  }();
  if (!fetched.ok() && interrupted) {
    std::fprintf(stderr, "\nlapidary: stopped; the same command goes on from there\n");
    ExitInterrupted();
  }
  return fetched;
}

// A model that is not ours is refused before its weights are fetched.
Status CheckConfig(const fs::path& snapshot, const std::string& name) {
  std::error_code error;
  // A GGUF file says it itself, and an assistant is no model.
  if (!fs::exists(snapshot / "config.json", error) || IsAssistantDirectory(snapshot)) return {};
  const auto model = DescribeModel(snapshot.string());
  if (model.ok()) return {};
  return MakeError("{}: {}", name, model.error().message);
}

// The assistant of `name`, if it has one. That it cannot be had is no reason not to run its model.
void FetchAssistant(const hub::HubSettings& settings, const hub::ModelName& name,
                    DraftFlags* drafting) {
  const auto repo = hub::AssistantRepo(name.repo);
  if (!repo) return;
  hub::FetchRequest request;
  request.name.repo = request.name.typed = *repo;
  request.wants = {.text = false, .media = false, .assistant = false};
  const auto fetched = Fetch(settings, request);
  if (fetched.ok()) {
    drafting->spec_model = fetched->path.string();
  } else {
    spdlog::warn("tokens are not drafted, so answers take longer: {}", fetched.error().message);
  }
}

bool WantsAssistant(const DraftFlags* drafting) {
  return drafting != nullptr && !drafting->no_spec && drafting->spec_model.empty() &&
         drafting->speculative_config.empty();
}

// An assistant may be named as models are.
Status FindNamedAssistant(DraftFlags* drafting) {
  if (drafting == nullptr || drafting->no_spec || drafting->spec_model.empty()) return {};
  if (IsPreset(drafting->spec_model)) return {};
  const auto found = FindModel(&drafting->spec_model, {.text = false, .media = false});
  if (!found.ok()) return MakeError("--spec-model: {}", found.error().message);
  return {};
}

}  // namespace

Result<std::optional<HubNames>> FindModel(std::string* model, const ModelNeeds& needs) {
  using Found = std::optional<HubNames>;
  RETURN_IF_ERROR(FindNamedAssistant(needs.drafting));
  const bool takes_gguf = model->starts_with(kGgufMark);
  std::error_code error;
  if (!takes_gguf) {
    if (model->empty() || fs::exists(*model, error)) return Found();
    ResolveBundled(model);
    if (fs::exists(*model, error)) return Found();
    if (!needs.weights && IsPreset(*model)) return Found();
  }
  const std::string text = takes_gguf ? model->substr(kGgufMark.size()) : *model;
  ASSIGN_OR_RETURN(const std::optional<hub::ModelName> name, hub::ParseModelName(text));
  if (!name && takes_gguf) {
    return MakeError("-hf '{}': must be OWNER/NAME or OWNER/NAME:QUANT, as on the Hub", text);
  }
  if (!name) return Found();
  ASSIGN_OR_RETURN(const hub::HubSettings settings, hub::HubSettings::FromEnvironment());
  const bool wants_assistant = needs.weights && WantsAssistant(needs.drafting);
  hub::FetchRequest request;
  request.name = *name;
  request.wants = {.quant = name->quant,
                   .takes_gguf = takes_gguf,
                   .weights = needs.weights,
                   .text = needs.text,
                   .media = needs.media,
                   .assistant = wants_assistant};
  if (needs.text) {
    request.check = [&](const fs::path& snapshot) { return CheckConfig(snapshot, name->typed); };
  }
  const auto fetched = Fetch(settings, request);
  if (!fetched.ok()) return fetched.error();
  if (!fs::exists(fetched->path, error)) {
    return MakeError("{} is a GGUF file, which says what it is once it is here: 'lapidary pull {}'",
                     name->typed, name->Spelled());
  }
  *model = fetched->path.string();
  if (wants_assistant) {
    if (fetched->assistant) {
      needs.drafting->spec_model = fetched->assistant->string();
    } else {
      FetchAssistant(settings, *name, needs.drafting);
    }
  }
  return Found(HubNames{name->typed, name->repo});
}

Result<std::optional<HubNames>> FindModelOrDefault(std::string* model, const ModelNeeds& needs) {
  ASSIGN_OR_RETURN(auto found, FindModel(model, needs));
  RETURN_IF_ERROR(ResolveModel(model));
  return found;
}

bool IsHubName(const std::string& text) {
  const auto name = hub::ParseModelName(text);
  return name.ok() && name->has_value();
}

Status TakeHubFlag(const std::string& hf_repo, std::string* model) {
  if (hf_repo.empty()) return {};
  if (!model->empty()) {
    return MakeError("name one model: '{}', or -hf {}", *model, hf_repo);
  }
  *model = std::string(kGgufMark) + hf_repo;
  return {};
}

}  // namespace lapidary
