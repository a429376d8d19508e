#include "apps/bench/engine_bench_flags.h"

#include <cstdio>
#include <fstream>

#include "apps/size_words.h"
#include "model/presets.h"

namespace lapidary {

void EngineBenchFlags::AddTo(CLI::App& command) {
  model.AddTo(command);
  model.drafting.AddTo(command);
  model.drafting.AddSimulationTo(command);
  command.add_option("--preset", preset, "Dimensions to run with random weights: e2b e4b ...")
      ->group("Model")
      ->check(CLI::IsMember(PresetNames()));
  command.add_option("--seed", seed, "Of the prompts")->capture_default_str();
  command.add_flag("--json", json, "Print the result as one JSON object");
  command.add_option("--output-json", output_json, "Write the JSON object to this file as well");
}

void AddLengthFlags(CLI::App& command, int& input_len, int& output_len) {
  const CLI::Range length(1, 1 << 24);
  command.add_option("--input-len", input_len, "Tokens of a prompt")
      ->transform(SizeWords())
      ->check(length)
      ->capture_default_str();
  command.add_option("--output-len", output_len, "Tokens of an answer")
      ->transform(SizeWords())
      ->check(length)
      ->capture_default_str();
}

Status EngineBenchFlags::Complete() {
  if (preset.empty()) return model.Find(/*media=*/false, /*drafts=*/true);
  if (!model.model.empty()) {
    return MakeError("name one model: a checkpoint directory, or --preset for random weights");
  }
  model.model = preset;
  model.has_dummy_weights = true;
  return {};
}

Result<std::unique_ptr<Session>> EngineBenchFlags::Load(int64_t max_tokens, int num_sequences,
                                                        int max_num_seqs) const {
  ModelFiles files;
  ASSIGN_OR_RETURN(files.description, DescribeModel(model.model));
  files.text = std::make_shared<const TextModel>(TextModel::None(model.model));
  if (max_tokens > files.description.plan.max_context) {
    return MakeError("--input-len and --output-len make {} tokens, the model's context is {}",
                     max_tokens, files.description.plan.max_context);
  }
  return model.LoadSession(std::move(files), max_tokens, num_sequences, max_num_seqs);
}

DeviceKind EngineBenchFlags::Device() const {
  const auto choice = ChooseDevice(model.device, ProbeDeviceFacts());
  return choice.ok() ? choice->kind : DeviceKind::kCpu;
}

Status EngineBenchFlags::Print(const std::string& text,
                               const nlohmann::ordered_json& result) const {
  fmt::print("{}", json ? result.dump() + "\n" : text);
  std::fflush(stdout);
  if (output_json.empty()) return {};
  std::ofstream file(output_json);
  file << result.dump(2) << "\n";
  if (!file.flush()) return MakeError("--output-json {}: cannot be written", output_json);
  return {};
}

}  // namespace lapidary
