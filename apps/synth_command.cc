// `lapidary synth`: random checkpoints in the Hugging Face layout, for tests and timings.
#include "apps/commands.h"
#include "base/read_file.h"
#include "model/assistant_preset.h"
#include "model/presets.h"
#include "synth/synth.h"

namespace lapidary {
namespace {

struct SynthFlags {
  std::string preset;
  std::string config_path;
  std::string out;
  std::string dtype = "bf16";
  uint64_t seed = 0;
  bool assistant = false;
  bool ordered = false;
  bool poison_unused = false;
  double shard_gb = 5.0;
};

Status Synth(const SynthFlags& flags) {
  Json config;
  if (!flags.config_path.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.config_path, kMaxConfigFileBytes));
    ASSIGN_OR_RETURN(config, ParseJson(text, flags.config_path));
  } else {
    ASSIGN_OR_RETURN(config, PresetConfig(flags.preset));
  }
  SynthOptions options;
  options.seed = flags.seed;
  options.poison_unused = flags.poison_unused;
  options.max_shard_bytes = static_cast<int64_t>(flags.shard_gb * 1e9);
  options.dtype = flags.dtype == "f32"   ? DType::kF32
                  : flags.dtype == "f16" ? DType::kF16
                                         : DType::kBF16;
  ThreadPool threads(0);
  RETURN_IF_ERROR(WriteSyntheticCheckpoint(config, options, flags.out, threads));
  std::fprintf(stderr, "wrote %s\n", flags.out.c_str());
  if (!flags.assistant) return {};
  ASSIGN_OR_RETURN(const Json assistant, flags.preset.empty()
                                             ? TinyAssistantConfig(config, flags.ordered)
                                             : AssistantPresetConfig(flags.preset));
  const std::string assistant_out = flags.out + "-assistant";
  RETURN_IF_ERROR(WriteSyntheticAssistant(assistant, options, assistant_out, threads));
  std::fprintf(stderr, "wrote %s\n", assistant_out.c_str());
  return {};
}

}  // namespace

void AddSynthCommand(CommandLine& command_line) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App* command = command_line.Add(
      "synth", "Write a random checkpoint in the Hugging Face layout (for tests and timings)",
      [flags] { return Synth(*flags); });
  auto* source = command->add_option_group("source", "What to make");
  source->add_option("--preset", flags->preset,
                     "tiny-e tiny-moe tiny-dense, or a published size: e2b e4b 12b 26b-a4b 31b");
  source->add_option("--config", flags->config_path, "A config.json of your own");
  source->require_option(1);
  command->add_option("--out", flags->out, "Directory to write; must not exist or be empty")
      ->required();
  command->add_option("--seed", flags->seed, "Same seed, same bytes")->capture_default_str();
  command->add_option("--dtype", flags->dtype, "Stored type")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
  command->add_flag("--assistant", flags->assistant,
                    "Also write OUT-assistant, the preset's drafting assistant, or a tiny one");
  command->add_flag("--ordered-assistant", flags->ordered,
                    "With --config: the tiny assistant has an ordered head");
  command->add_flag("--poison-unused", flags->poison_unused,
                    "Add the tensors a text decoder must ignore, filled with NaN");
  command->add_option("--shard-gb", flags->shard_gb, "Largest shard in GB")
      ->check(CLI::Range(1e-6, 1000.0))
      ->capture_default_str();
}

}  // namespace lapidary
