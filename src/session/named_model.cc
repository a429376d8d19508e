#include "session/named_model.h"

#include <spdlog/spdlog.h>

#include <filesystem>

#include "hub/fetch_model.h"
#include "hub/known_models.h"
#include "load/drafting.h"
#include "load/model_directory.h"
#include "model/presets.h"
#include "session/bundled_models.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

// Marks a name that -hf gave; no name of a file or of the Hub begins so.
constexpr std::string_view kGgufMark = "hf-gguf:";

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
                    const std::atomic<bool>& cancelled, std::string* assistant) {
  const auto repo = hub::AssistantRepo(name.repo);
  if (!repo) return;
  hub::FetchRequest request;
  request.name.repo = request.name.typed = *repo;
  request.wants = {.text = false, .media = false, .assistant = false};
  const auto fetched = hub::FetchModel(settings, request, cancelled);
  if (fetched.ok()) {
    *assistant = fetched->path.string();
  } else {
    spdlog::warn("tokens are not drafted, so answers take longer: {}", fetched.error().message);
  }
}

// An assistant may be named as models are.
Status FindNamedAssistant(const ModelParts& parts, const std::atomic<bool>& cancelled) {
  if (parts.assistant == nullptr || parts.assistant->empty()) return {};
  if (IsPreset(*parts.assistant)) return {};
  const auto found = FindNamedModel(parts.assistant, {.text = false, .media = false}, cancelled);
  return found.ok() ? Status() : found.error();
}

}  // namespace

Result<std::optional<HubNames>> FindNamedModel(std::string* model, const ModelParts& parts,
                                               const std::atomic<bool>& cancelled) {
  using Found = std::optional<HubNames>;
  if (const Status named = FindNamedAssistant(parts, cancelled); !named.ok()) {
    return MakeError("the assistant: {}", named.error().message);
  }
  const bool takes_gguf = model->starts_with(kGgufMark);
  std::error_code error;
  if (!takes_gguf) {
    if (model->empty() || fs::exists(*model, error)) return Found();
    ResolveBundled(model);
    if (fs::exists(*model, error)) return Found();
    if (!parts.weights && IsPreset(*model)) return Found();
  }
  const std::string text = takes_gguf ? model->substr(kGgufMark.size()) : *model;
  ASSIGN_OR_RETURN(const std::optional<hub::ModelName> name, hub::ParseModelName(text));
  if (!name && takes_gguf) {
    return MakeError("-hf '{}': must be OWNER/NAME or OWNER/NAME:QUANT, as on the Hub", text);
  }
  if (!name) return Found();
  ASSIGN_OR_RETURN(const hub::HubSettings settings, hub::HubSettings::FromEnvironment());
  const bool wants_assistant = parts.weights && parts.assistant != nullptr &&
                               parts.assistant->empty() && parts.fetches_assistant;
  hub::FetchRequest request;
  request.name = *name;
  request.wants = {.quant = name->quant,
                   .takes_gguf = takes_gguf,
                   .weights = parts.weights,
                   .text = parts.text,
                   .media = parts.media,
                   .assistant = wants_assistant};
  if (parts.text) {
    request.check = [&](const fs::path& snapshot) { return CheckConfig(snapshot, name->typed); };
  }
  const auto fetched = hub::FetchModel(settings, request, cancelled);
  if (!fetched.ok()) return fetched.error();
  if (!fs::exists(fetched->path, error)) {
    return MakeError("{} is a GGUF file, which says what it is once it is here: 'lapidary pull {}'",
                     name->typed, name->Spelled());
  }
  *model = fetched->path.string();
  if (wants_assistant) {
    if (fetched->assistant) {
      *parts.assistant = fetched->assistant->string();
    } else {
      FetchAssistant(settings, *name, cancelled, parts.assistant);
    }
  }
  return Found(HubNames{name->typed, name->repo});
}

bool IsHubName(const std::string& text) {
  const auto name = hub::ParseModelName(text);
  return name.ok() && name->has_value();
}

std::string GgufOfHub(const std::string& name) { return std::string(kGgufMark) + name; }

}  // namespace lapidary
