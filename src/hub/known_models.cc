#include "hub/known_models.h"

#include <fmt/format.h>

#include <array>

#include "hub/lower_case.h"

namespace lapidary::hub {
namespace {

constexpr std::array kModels = {
    KnownModel{"e2b", "E2B", 9'260'000'000, 3'349'516'256, true, true},
    KnownModel{"e4b", "E4B", 14'930'000'000, 5'150'000'000, true, true},
    KnownModel{"12b", "12B", 23'810'000'000, 6'980'000'000, true, false},
    KnownModel{"26b-a4b", "26B-A4B", 50'470'000'000, 14'439'361'440, false, true},
    KnownModel{"31b", "31B", 61'390'000'000, 17'651'001'568, true, false},
};

// Beside the weights: towers, an assistant, buffers and a context of some 8,000 tokens.
constexpr int64_t kRoomBeside = 2'000'000'000;
// Of a GPU's memory as --gpu-memory-utilization has it, of a machine's what others leave.
constexpr double kShareOfGpu = 0.9;
constexpr double kShareOfMemory = 0.7;

}  // namespace

std::span<const KnownModel> KnownModels() { return kModels; }

const KnownModel* FindKnownModel(std::string_view short_name) {
  std::string name = LowerCase(short_name);
  if (name == "26b") name = "26b-a4b";
  for (const KnownModel& model : kModels) {
    if (model.short_name == name) return &model;
  }
  return nullptr;
}

std::string CheckpointRepo(const KnownModel& model) {
  return fmt::format("google/gemma-4-{}-it", model.hub_size);
}

std::optional<std::string> AssistantRepo(std::string_view repo) {
  const std::string name = LowerCase(repo);
  if (name.find("assistant") != std::string::npos) return std::nullopt;
  for (const KnownModel& model : kModels) {
    const std::string stem = fmt::format("gemma-4-{}-it", model.short_name);
    const size_t at = name.find(stem);
    if (at == std::string::npos) continue;
    const bool is_qat = name.find("-qat", at + stem.size()) != std::string::npos;
    return fmt::format("google/gemma-4-{}-it{}-assistant", model.hub_size,
                       is_qat ? "-qat-q4_0-unquantized" : "");
  }
  return std::nullopt;
}

std::optional<Suggestion> SuggestModel(int64_t gpu_bytes, int64_t memory_bytes) {
  std::optional<Suggestion> best;
  for (const KnownModel& model : kModels) {
    const int64_t num_bytes = gpu_bytes > 0 ? model.bf16_bytes : model.q4_0_bytes;
    const double usable = gpu_bytes > 0 ? kShareOfGpu * static_cast<double>(gpu_bytes)
                                        : kShareOfMemory * static_cast<double>(memory_bytes);
    if (static_cast<double>(num_bytes + kRoomBeside) > usable) continue;
    if (gpu_bytes == 0 && !model.reads_few_weights) continue;
    best = Suggestion{std::string(model.short_name) + (gpu_bytes > 0 ? "" : ":q4_0"), num_bytes};
  }
  return best;
}

}  // namespace lapidary::hub
