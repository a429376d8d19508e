// `lapidary generate`: one prompt, one answer.
#include <algorithm>
#include <chrono>

#include "apps/commands.h"
#include "apps/model_flags.h"
#include "engine/single_sequence.h"
#include "sampling/generation_config.h"

namespace lapidary {
namespace {

struct GenerateFlags {
  ModelFlags model;
  std::string ids;
  int64_t max_tokens = 128;
  double temperature = 0.0;
  bool ignore_eos = false;
  bool json = false;
};

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

Status Generate(const GenerateFlags& flags) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, ParseIds(flags.ids));
  {
    ASSIGN_OR_RETURN(const ModelDescription description, DescribeModel(flags.model.model));
    RETURN_IF_ERROR(CheckPrompt(description.plan, prompt, flags.max_tokens));
  }
  ASSIGN_OR_RETURN(LoadedModel model,
                   flags.model.Load(static_cast<int64_t>(prompt.size()) + flags.max_tokens));
  std::vector<int32_t> stop_ids;
  if (model.description.directory) {
    ASSIGN_OR_RETURN(const GenerationDefaults defaults,
                     GenerationDefaults::Load(*model.description.directory));
    stop_ids = defaults.stop_ids;
  }
  auto params = std::make_shared<SamplingParams>();
  params->temperature = static_cast<float>(flags.temperature);

  SingleSequence sequence(*model.executor, flags.model.chunk_rows);
  std::vector<int32_t> output;
  std::string finish_reason = "length";
  const auto start = std::chrono::steady_clock::now();
  double prefill_ms = 0.0;
  std::vector<int32_t> next(prompt.begin(), prompt.end());
  while (static_cast<int64_t>(output.size()) < flags.max_tokens) {
    ASSIGN_OR_RETURN(const SampledToken token,
                     sequence.AppendAndSample(next, params, /*history=*/nullptr, output.size()));
    if (output.empty()) prefill_ms = MillisecondsSince(start);
    output.push_back(token.id);
    next = {token.id};
    const bool is_stop = std::find(stop_ids.begin(), stop_ids.end(), token.id) != stop_ids.end();
    if (is_stop && !flags.ignore_eos) {
      finish_reason = "stop";
      break;
    }
  }
  const double total_ms = MillisecondsSince(start);
  const double decode_ms = total_ms - prefill_ms;
  Json json;
  json["prompt_ids"] = prompt;
  json["output_ids"] = output;
  json["text"] = nullptr;
  json["finish_reason"] = finish_reason;
  json["timings"] = {
      {"load_ms", model.load_ms},
      {"prefill_ms", prefill_ms},
      {"decode_ms", decode_ms},
      {"ttft_ms", prefill_ms},
      {"tokens_per_s",
       output.size() > 1 ? 1e3 * static_cast<double>(output.size() - 1) / decode_ms : 0.0}};
  if (flags.json) {
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{}\n", fmt::join(output, " "));
  }
  return {};
}

}  // namespace

void AddGenerateCommand(CommandLine& command_line) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command =
      command_line.Add("generate", "Continue one prompt", [flags] { return Generate(*flags); });
  flags->model.AddTo(*command);
  command->add_option("--ids", flags->ids, "Token ids, used as they stand: 2,5,9")->required();
  command->add_option("--max-tokens", flags->max_tokens, "Most tokens to generate")
      ->check(CLI::Range(1, 1 << 28))
      ->capture_default_str();
  command->add_option("--temperature", flags->temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on past stop tokens");
  command->add_flag("--json", flags->json, "Print one JSON object");
}

}  // namespace lapidary
