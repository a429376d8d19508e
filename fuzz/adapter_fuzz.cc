// The two files of a LoRA adapter from anywhere: a sentence, or deltas that fit their matrices.
//
// An input is a line "e" or "moe" for the model, adapter_config.json up to a zero byte, and
// adapter_model.safetensors; or a line "gguf" (of "moe") and a GGUF file.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "adapter/adapter.h"
#include "base/check.h"
#include "model/presets.h"

namespace {

using lapidary::Adapter;
using lapidary::AdapterSite;
using lapidary::LoraDelta;
using lapidary::ModelPlan;

const ModelPlan& PlanOf(const char* preset) {
  static const auto make = [](const char* name) {
    return *lapidary::MakeModelPlan(
        *lapidary::ParseModelConfig(*lapidary::PresetConfig(name), name));
  };
  static const ModelPlan e = make("tiny-e");
  static const ModelPlan moe = make("tiny-moe");
  return std::string_view(preset) == "tiny-e" ? e : moe;
}

// Every value is read.
void CheckDelta(const LoraDelta& delta) {
  CHECK(delta.a.rows > 0 && delta.a.rows <= lapidary::kMaxAdapterRank);
  CHECK_EQ(delta.a.rows, delta.b.cols);
  CHECK_GE(delta.first_row, 0);
  uint32_t sum = 0;
  for (const lapidary::MatrixRef& half : {delta.a, delta.b}) {
    const auto* const bytes = static_cast<const uint8_t*>(half.data);
    for (int64_t idx = 0; idx < half.bytes().total(); ++idx) sum += bytes[idx];
  }
  [[maybe_unused]] static volatile uint32_t sink;
  sink = sum;
}

void CheckAdapter(const Adapter& adapter, const ModelPlan& plan) {
  CHECK_NE(adapter.digest(), 0u);
  CHECK_GT(adapter.num_applied(), 0);
  for (int layer = -1; layer < plan.num_layers; ++layer) {
    for (int site = 0; site < lapidary::kNumAdapterSites; ++site) {
      const LoraDelta* const delta = adapter.Find(static_cast<AdapterSite>(site), layer);
      if (delta != nullptr) CheckDelta(*delta);
    }
    if (layer < 0 || !plan.moe) continue;
    for (int expert = 0; expert < plan.moe->num_experts; ++expert) {
      for (const AdapterSite site : {AdapterSite::kExpertGateUp, AdapterSite::kExpertDown}) {
        for (const LoraDelta& delta : adapter.OfExpert(site, layer, expert)) CheckDelta(delta);
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = input.find('\n');
  if (line == std::string_view::npos) return 0;
  const bool is_gguf = input.substr(0, line) == "gguf";
  const bool is_moe = is_gguf || input.substr(0, line) == "moe";
  const ModelPlan& plan = PlanOf(is_moe ? "tiny-moe" : "tiny-e");
  const std::string_view files = input.substr(line + 1);
  const auto* const begin = reinterpret_cast<const std::byte*>(files.data());
  const size_t config_bytes = is_gguf ? 0 : files.find('\0');
  const std::string_view config = files.substr(0, config_bytes);
  const size_t tensors_begin = is_gguf ? 0 : std::min(config.size() + 1, files.size());
  std::vector<std::byte> tensors(begin + tensors_begin, begin + files.size());
  const auto adapter = is_gguf ? Adapter::ParseGguf(std::move(tensors), plan, {}, "fuzz/")
                               : Adapter::Parse(config, std::move(tensors), plan, {}, "fuzz");
  if (adapter.ok()) {
    CheckAdapter(**adapter, plan);
  } else {
    CHECK(adapter.error().message.starts_with("fuzz/"));
    CHECK_LT(adapter.error().message.size(), 2000u);
  }
  return 0;
}
