#include "apps/lora_serving_flags.h"

#include <algorithm>

#include "apps/lora_flag.h"
#include "base/json_fields.h"

namespace lapidary {
namespace {

struct NamedAdapter {
  std::string name;
  std::string path;
};

// NAME=DIR, or {"name": ..., "path": ...} with vLLM's base_model_name.
Result<NamedAdapter> ParseModule(const std::string& text) {
  NamedAdapter module;
  if (text.starts_with('{')) {
    ASSIGN_OR_RETURN(const Json json, ParseJson(text, "--lora-modules"));
    JsonFields fields(json, "--lora-modules");
    module.name = fields.StringOr("name", "");
    module.path = fields.StringOr("path", "");
    RETURN_IF_ERROR(fields.status());
  } else {
    const size_t mark = std::min(text.find('='), text.size());
    module.name = text.substr(0, mark);
    module.path = text.substr(std::min(mark + 1, text.size()));
  }
  if (module.name.empty() || module.path.empty()) {
    return MakeError("--lora-modules '{}': give NAME=DIR", text);
  }
  return module;
}

}  // namespace

std::vector<CLI::Option*> LoraServingFlags::AddTo(CLI::App& command) {
  constexpr const char* kGroup = "LoRA adapters";
  std::vector<CLI::Option*> options = {
      command.add_flag("--enable-lora", enabled,
                       "Answer with LoRA adapters where a request's model is one's name (on the "
                       "CPU alone)"),
      command
          .add_option("--lora-modules", modules,
                      "Adapters that are there from the start: NAME=DIR, a directory in PEFT's "
                      "format; may be repeated")
          ->type_name("NAME=DIR"),
      command
          .add_option("--max-lora-rank", limits.max_rank, "Largest rank that an adapter may have")
          ->check(CLI::Range(1, kMaxAdapterRank))
          ->capture_default_str(),
      command
          .add_option("--max-cpu-loras", limits.max_adapters,
                      "Most adapters that are loaded at once")
          ->check(CLI::Range(1, 1 << 16))
          ->capture_default_str(),
      command.add_flag("--allow-runtime-lora", allows_runtime,
                       "Let requests load and unload adapters of --lora-dir, by "
                       "/v1/load_lora_adapter and /v1/unload_lora_adapter"),
      command.add_option("--lora-dir", directory, "Directory below which those adapters must lie")
          ->check(CLI::ExistingDirectory)};
  for (CLI::Option* option : options) option->group(kGroup);
  return options;
}

Result<std::shared_ptr<AdapterTable>> LoraServingFlags::Load(
    const ModelPlan& plan, const DeviceChoice& device, int num_ranks,
    const std::vector<std::string>& own_names) const {
  if (!enabled) {
    if (!modules.empty()) return MakeError("--lora-modules needs --enable-lora");
    if (allows_runtime) return MakeError("--allow-runtime-lora needs --enable-lora");
    return std::shared_ptr<AdapterTable>();
  }
  if (allows_runtime && directory.empty()) {
    return MakeError("--allow-runtime-lora needs --lora-dir, the directory that requests may name");
  }
  if (const Status runs = CheckTakesAdapters(device, num_ranks); !runs.ok()) {
    return MakeError(
        "--enable-lora: adapters run on the CPU without tensor parallelism only: use --device cpu "
        "and --tensor-parallel-size 1");
  }
  const auto table = std::make_shared<AdapterTable>(plan, limits);
  for (const std::string& text : modules) {
    ASSIGN_OR_RETURN(const NamedAdapter module, ParseModule(text));
    if (std::ranges::find(own_names, module.name) != own_names.end()) {
      return MakeError("--lora-modules {}: '{}' is the model's own name", text, module.name);
    }
    const Status loaded = table->Load(module.name, module.path, module.path, /*replaces=*/false);
    if (!loaded.ok()) return MakeError("--lora-modules {}: {}", text, loaded.error().message);
  }
  return table;
}

}  // namespace lapidary
