// `lapidary convert`: a checkpoint as one GGUF file with quantised weights.
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/load_flags.h"
#include "apps/lora_flag.h"
#include "apps/named_models.h"
#include "convert/convert.h"
#include "convert/merged_source.h"
#include "load/drafting.h"
#include "load/quantisation_names.h"
#include "load/stored_weights.h"
#include "model/converted_source.h"

namespace lapidary {
namespace {

struct ConvertFlags {
  std::string model;
  std::string to;
  std::string out;
  LoadFlags load;
  LoraFlag lora;
};

Result<std::vector<ConvertedTensor>> Write(const ConvertFlags& flags, DType to,
                                           ThreadPool& threads) {
  if (IsAssistantDirectory(flags.model)) {
    if (!flags.lora.text.empty()) {
      return MakeError("--lora: '{}' is an assistant, which takes no adapter", flags.model);
    }
    ASSIGN_OR_RETURN(const UnpairedAssistant assistant,
                     OpenUnpairedAssistant(flags.model, threads));
    return ConvertToGguf(assistant.plan, *assistant.source, to, flags.out, threads,
                         flags.load.Options().head_bits);
  }
  ASSIGN_OR_RETURN(const ModelDescription model, DescribeModel(flags.model));
  if (!model.directory) {
    return MakeError("'{}' is not a checkpoint directory: only those are converted", flags.model);
  }
  ASSIGN_OR_RETURN(const auto adapter, flags.lora.Load(model.plan));
  ASSIGN_OR_RETURN(auto stored, OpenStoredWeights(model));
  ASSIGN_OR_RETURN(std::shared_ptr<const TensorSource> source,
                   ConvertForCpu(RequiredTensors(model.plan), std::move(stored),
                                 {.rounds_float_codes = true}, threads));
  if (adapter) {
    source = std::make_shared<MergedSource>(model.plan, std::move(source), adapter, threads);
  }
  return ConvertToGguf(model, *source, to, flags.out, threads, flags.load.Options().head_bits);
}

Status Convert(ConvertFlags flags) {
  const auto found = FindModel(&flags.model, {.media = false});
  if (!found.ok()) return found.error();
  std::error_code error;
  if (std::filesystem::exists(flags.out, error)) {
    return MakeError("--out {}: is there already; remove it or name another file", flags.out);
  }
  ThreadPool threads(flags.load.Options().num_threads);
  ASSIGN_OR_RETURN(const std::vector<ConvertedTensor> tensors,
                   Write(flags, *QuantisationByName(flags.to), threads));
  int64_t total_bytes = 0;
  fmt::print("{:<40}  {:<6}  {:>12}  {}\n", "tensor", "type", "bytes", "relative error");
  for (const ConvertedTensor& tensor : tensors) {
    total_bytes += tensor.num_bytes;
    fmt::print(
        "{:<40}  {:<6}  {:>12}  {}\n", tensor.name, DTypeName(tensor.dtype), tensor.num_bytes,
        tensor.relative_error == 0.0 ? "exact" : fmt::format("{:.5f}", tensor.relative_error));
  }
  fmt::print(stderr, "wrote {} ({:.3f} GB)\n", flags.out, 1e-9 * static_cast<double>(total_bytes));
  return {};
}

}  // namespace

void AddConvertCommand(CommandLine& command_line) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* command = command_line.Add(
      "convert", "Write a checkpoint as a GGUF file with quantised weights, and what each lost",
      [flags] { return Convert(*flags); });
  command
      ->add_option("model", flags->model,
                   "Checkpoint directory or model of the Hub, of a model or of an assistant")
      ->required();
  command
      ->add_option("--to", flags->to,
                   "Type of the matrices: 8.5 bits a weight, or 4.5; q4_k loses less than q4_0")
      ->required()
      ->check(CLI::IsMember({"q8_0", "q4_0", "q4_k"}));
  flags->load.AddTo(*command, {"head-bits", "threads"});
  command->add_option("--lora", flags->lora.text,
                      "LoRA adapter to merge into the weights: DIR, or DIR=SCALE");
  command->add_option("--out", flags->out, "GGUF file to write; must not exist")->required();
}

}  // namespace lapidary
