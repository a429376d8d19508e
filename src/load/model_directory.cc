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

// "google/gemma-4-E2B-it": an owner and a name, as the Hugging Face Hub has them.
bool IsHubName(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == name.size() || name[0] == '.') {
    return false;
  }
  return name.find('/', slash + 1) == std::string::npos &&
         name.substr(slash + 1).starts_with("gemma");
}

// Older files of modelopt say that they are quantised in a file of its own.
Status TakeModeloptFile(const std::filesystem::path& directory, Json& config) {
  const auto path = directory / "hf_quant_config.json";
  std::error_code error;
  if (IsQuantised(config) || !std::filesystem::exists(path, error)) return {};
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
  ASSIGN_OR_RETURN(Json quantisation, ParseJson(text, path.string()));
  if (!quantisation.is_object()) return MakeError("{}: expected a JSON object", path.string());
  quantisation["quant_method"] = "modelopt";
  config["quantization_config"] = std::move(quantisation);
  return {};
}

// Some files of compressed-tensors hold a head of their own, whatever the config says.
bool HoldsHead(const std::filesystem::path& directory) {
  const auto checkpoint = Checkpoint::Open(directory);
  return checkpoint.ok() && (checkpoint->Find(kHeadName) != nullptr ||
                             checkpoint->Find("lm_head.weight_packed") != nullptr);
}

// The first mmproj file beside a GGUF model that fits it. The others do not matter, unless it is
// the only one: then why it is not used is said.
void TakeTowers(const GgufCheckpoint& checkpoint, ModelDescription& model) {
  std::string problem;
  for (const std::filesystem::path& path : MmprojFilesBeside(*model.gguf_file)) {
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
  return directory ? std::filesystem::weakly_canonical(*directory).filename().string() : name;
}

Result<ModelDescription> DescribeModel(const std::string& model_or_preset) {
  ModelDescription model;
  model.name = model_or_preset;
  std::error_code error;
  std::string source = model_or_preset;
  if (std::filesystem::is_directory(model_or_preset, error)) {
    model.directory = model.towers = model_or_preset;
    const auto path = *model.directory / "config.json";
    ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
    source = path.string();
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
    ASSIGN_OR_RETURN(const GgufCheckpoint checkpoint, GgufCheckpoint::Open(*model.gguf_file));
    ASSIGN_OR_RETURN(model.config, ConfigFromGguf(checkpoint));
    TakeTowers(checkpoint, model);
  } else if (IsPreset(model_or_preset)) {
    ASSIGN_OR_RETURN(model.config, PresetConfig(model_or_preset));
    source = "preset " + model_or_preset;
  } else if (error && error != std::errc::no_such_file_or_directory) {
    return MakeError("cannot open {}: {}", model_or_preset, error.message());
  } else if (IsHubName(model_or_preset)) {
    const std::string folder = model_or_preset.substr(model_or_preset.find('/') + 1);
    return MakeError(
        "there is no directory '{}', and nothing is downloaded here; get the weights with 'hf "
        "download {} --local-dir {}' and name that directory",
        model_or_preset, model_or_preset, folder);
  } else {
    return MakeError("'{}' is neither a checkpoint directory, nor a GGUF file, nor a preset ({})",
                     model_or_preset, fmt::join(PresetNames(), ", "));
  }
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(model.config, source));
  Result<ModelPlan> plan = MakeModelPlan(config);
  if (!plan.ok()) return MakeError("{}: {}", source, plan.error().message);
  model.plan = std::move(plan).value();
  return model;
}

}  // namespace lapidary
