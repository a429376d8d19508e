#include "apps/lora_flag.h"

#include <spdlog/spdlog.h>

#include <charconv>
#include <cmath>

namespace lapidary {

CLI::Option* LoraFlag::AddTo(CLI::App& command) {
  return command
      .add_option("--lora", text,
                  "LoRA adapter to run the model with, a directory in PEFT's format or a "
                  "GGUF file: DIR, or "
                  "DIR=SCALE to multiply what it adds (on the CPU alone)")
      ->group("Model");
}

Result<std::shared_ptr<const Adapter>> LoraFlag::Load(const ModelPlan& plan) const {
  if (text.empty()) return std::shared_ptr<const Adapter>();
  std::string directory = text;
  AdapterOptions options;
  const size_t mark = text.rfind('=');
  std::error_code error;
  if (mark != std::string::npos && !std::filesystem::exists(text, error)) {
    directory = text.substr(0, mark);
    const char* const end = text.data() + text.size();
    const auto [parsed, failure] = std::from_chars(text.data() + mark + 1, end, options.scale);
    if (failure != std::errc() || parsed != end || !(std::abs(options.scale) <= 1e3)) {
      return MakeError("--lora {}: the scale behind '=' must be a number from -1000 to 1000", text);
    }
  }
  auto adapter = Adapter::Load(directory, plan, options);
  if (!adapter.ok()) return MakeError("--lora: {}", adapter.error().message);
  spdlog::info("LoRA adapter {}: applied {}", directory, (*adapter)->Summary());
  return adapter;
}

Error NoAdaptersHere() {
  return MakeError(
      "--lora runs on the CPU without tensor parallelism only: use --device cpu and "
      "--tensor-parallel-size 1, or merge the adapter into the checkpoint");
}

Status CheckTakesAdapters(const DeviceChoice& device, int num_ranks) {
  if (device.kind == DeviceKind::kCpu && num_ranks == 1) return {};
  return NoAdaptersHere();
}

}  // namespace lapidary
