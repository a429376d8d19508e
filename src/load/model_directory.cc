#include "load/model_directory.h"

#include <spdlog/spdlog.h>

#include "base/read_file.h"
#include "checkpoint/checkpoint.h"
#include "gguf/gguf_config.h"
#include "gguf/mmproj.h"
#include "model/presets.h"
#include "model/tensor_specs.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

// Whether a file is what git leaves where a large one was not fetched.
bool IsGitLfsPointer(const fs::path& path) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  constexpr size_t kMaxPointerBytes = 1024;
  const auto text = ReadFile(path, kMaxPointerBytes);
  return text.ok() && text->starts_with(kBegin);
}

Status CheckNotPointer(const fs::path& path) {
  if (!IsGitLfsPointer(path)) return {};
  return MakeError(
      "{} is a git-lfs pointer and not the file itself: 'git lfs pull' in its directory fetches "
      "it",
      path.string());
}

// The large files of a directory.
Status CheckNoPointers(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == "tokenizer.json" || name.ends_with(".safetensors")) {
      RETURN_IF_ERROR(CheckNotPointer(it->path()));
    }
  }
  return {};
}

// What is wrong with a name that is no directory, no GGUF file and no preset.
Error NoModel(const std::string& name) {
  const fs::path path(name);
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    const std::string directory = path.has_parent_path() ? path.parent_path().string() : ".";
    if (fs::exists(fs::path(directory) / "config.json", error)) {
      return MakeError("'{}' is one file of a model: name its directory, {}", name, directory);
    }
    return MakeError("'{}' is no GGUF file: name one, or a model's directory", name);
  }
  if (name.ends_with(".gguf") || name.ends_with(".safetensors") || name.ends_with(".json")) {
    return MakeError("there is no file '{}'", name);
  }
  return MakeError(
      "'{}' is neither a checkpoint directory, nor a GGUF file, nor a preset ({}); models of the "
      "Hugging Face Hub are fetched by 'lapidary pull OWNER/NAME'",
      name, fmt::join(PresetNames(), ", "));
}

// "google/gemma-4-E4B-it" of ".../models--google--gemma-4-E4B-it/snapshots/COMMIT".
std::optional<std::string> HubNameOf(const fs::path& directory) {
  constexpr std::string_view kModels = "models--";
  if (directory.parent_path().filename() != "snapshots") return std::nullopt;
  std::string name = directory.parent_path().parent_path().filename().string();
  if (!name.starts_with(kModels)) return std::nullopt;
  name.erase(0, kModels.size());
  const size_t dashes = name.find("--");
  return dashes == std::string::npos ? name : name.replace(dashes, 2, "/");
}

// Older files of modelopt say that they are quantised in a file of its own.
Status TakeModeloptFile(const fs::path& directory, Json& config) {
  const auto path = directory / "hf_quant_config.json";
  std::error_code error;
  if (IsQuantised(config) || !fs::exists(path, error)) return {};
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
  ASSIGN_OR_RETURN(Json quantisation, ParseJson(text, path.string()));
  if (!quantisation.is_object()) return MakeError("{}: expected a JSON object", path.string());
  quantisation["quant_method"] = "modelopt";
  config["quantization_config"] = std::move(quantisation);
  return {};
}

// Some files of compressed-tensors hold a head of their own, whatever the config says.
bool HoldsHead(const fs::path& directory) {
  const auto checkpoint = Checkpoint::Open(directory);
  return checkpoint.ok() && (checkpoint->Find(kHeadName) != nullptr ||
                             checkpoint->Find("lm_head.weight_packed") != nullptr);
}

// The first mmproj file beside a GGUF model that fits it. The others do not matter, unless it is
// the only one: then why it is not used is said.
void TakeTowers(const GgufCheckpoint& checkpoint, ModelDescription& model) {
  std::string problem;
  for (const fs::path& path : MmprojFilesBeside(*model.gguf_file)) {
    auto config = [&]() -> Result<Json> {
      ASSIGN_OR_RETURN(const GgufCheckpoint mmproj, GgufCheckpoint::Open(path));
      return ConfigWithTowers(checkpoint, model.config, mmproj);
    }();
    if (config.ok()) {
      model.config = std::move(config).value();
      model.towers = path;
      return;
    }
    problem = config.error().message;
  }
  if (!problem.empty()) spdlog::warn("no images and no audio: {}", problem);
}

}  // namespace

bool IsQuantised(const Json& config) {
  const auto is_there = [](const Json& part) {
    return part.contains("quantization_config") && !part["quantization_config"].is_null();
  };
  return is_there(config) || (config.contains("text_config") && is_there(config["text_config"]));
}

std::string ModelDescription::ShortName() const {
  if (gguf_file) return gguf_file->stem().string();
  if (!directory) return name;
  const fs::path path = fs::weakly_canonical(*directory);
  return HubNameOf(path).value_or(path.filename().string());
}

Result<ModelDescription> DescribeModel(const std::string& model_or_preset) {
  ModelDescription model;
  model.name = model_or_preset;
  std::error_code error;
  std::string source = model_or_preset;
  if (fs::is_directory(model_or_preset, error)) {
    model.directory = model.towers = model_or_preset;
    const auto path = *model.directory / "config.json";
    ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
    source = path.string();
    RETURN_IF_ERROR(CheckNoPointers(*model.directory));
    ASSIGN_OR_RETURN(model.config, ParseJson(text, source));
    if (model.config.is_object()) {
      RETURN_IF_ERROR(TakeModeloptFile(*model.directory, model.config));
    }
    if (model.is_compressed() && HoldsHead(*model.directory)) {
      Json& decoder =
          model.config.contains("text_config") ? model.config["text_config"] : model.config;
      decoder["tie_word_embeddings"] = false;
    }
  } else if (IsGgufFile(model_or_preset)) {
    model.gguf_file = model_or_preset;
    RETURN_IF_ERROR(CheckNotPointer(*model.gguf_file));
    ASSIGN_OR_RETURN(const GgufCheckpoint checkpoint, GgufCheckpoint::Open(*model.gguf_file));
    ASSIGN_OR_RETURN(model.config, ConfigFromGguf(checkpoint));
    TakeTowers(checkpoint, model);
  } else if (IsPreset(model_or_preset)) {
    ASSIGN_OR_RETURN(model.config, PresetConfig(model_or_preset));
    source = "preset " + model_or_preset;
  } else if (error && error != std::errc::no_such_file_or_directory) {
    return MakeError("cannot open {}: {}", model_or_preset, error.message());
  } else {
    return NoModel(model_or_preset);
  }
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(model.config, source));
  Result<ModelPlan> plan = MakeModelPlan(config);
  if (!plan.ok()) return MakeError("{}: {}", source, plan.error().message);
  model.plan = std::move(plan).value();
  return model;
}

}  // namespace lapidary
