// Which assistant drafts for a model: from what the user asked for to an executor's drafter.
#pragma once

#include <optional>
#include <string>

#include "executor/draft_options.h"
#include "executor/repeated_text.h"
#include "load/model_directory.h"
#include "sampling/simulated_acceptance.h"

namespace lapidary {

inline constexpr int kDefaultDrafts = 4;

// Who drafts beside a form's forced text, which costs nothing.
enum class DraftMethod {
  kAssistant,
  kNgram,  // text that repeats (executor/repeated_text.h); needs no assistant
  kAuto,   // both, that text before the assistant
};

struct DraftingRequest {
  bool enabled = true;
  DraftMethod method = DraftMethod::kAssistant;
  LookupLengths lookup = {};
  // A checkpoint directory, a GGUF file, or a preset whose assistant gets random weights. Empty:
  // the one beside the model, if there is one (FindAssistant).
  std::string assistant = {};
  int num_drafts = kDefaultDrafts;  // of a round, at most
  bool adapt = true;                // fewer where that is faster
  DraftPosition position = DraftPosition::kOfLastToken;
  DraftDraw draw = DraftDraw::kLikeliest;
  // Above 0: so many tokens a round are accepted on average, whatever was drafted.
  double simulated_accept_length = 0.0;
  SimulatedSchedule simulated_schedule = SimulatedSchedule::kConstant;
};

inline bool DraftsRepeatedText(const DraftingRequest& request) {
  return request.enabled && request.method != DraftMethod::kAssistant;
}

// What pairs with a model's directory (MODEL-assistant or MODEL/assistant) or GGUF file
// (MODEL-assistant.gguf), if it is there.
std::optional<std::filesystem::path> FindAssistant(const std::filesystem::path& model);

// An assistant that fits its model; its weights are not looked at.
struct PairedAssistant {
  std::string name;                           // as it was found
  std::optional<std::filesystem::path> path;  // a directory or a GGUF file; none: a preset
  bool is_compressed = false;                 // by compressed-tensors
  AssistantPlan plan;
};
// Nothing where drafting is off or by repeated text alone, or nobody named an assistant and there
// is none. Only with `takes_presets` may it be a preset, and none is looked for then unless
// acceptance is simulated.
Result<std::optional<PairedAssistant>> FindPairedAssistant(const ModelDescription& model,
                                                           const DraftingRequest& request,
                                                           bool takes_presets);

// An assistant by itself: what `convert` writes. Its head's rows are in the order of the token ids.
struct UnpairedAssistant {
  AssistantPlan plan;
  std::shared_ptr<const TensorSource> source;
};
bool IsAssistantDirectory(const std::filesystem::path& path);
Result<UnpairedAssistant> OpenUnpairedAssistant(const std::filesystem::path& directory,
                                                ThreadPool& threads);

struct LoadedDrafter {
  std::string name;  // as it was found
  DrafterOptions options;
};

// As FindPairedAssistant; with `dummy_seed` its weights are random, and presets are taken.
Result<std::optional<LoadedDrafter>> LoadDrafter(const ModelDescription& model,
                                                 const DraftingRequest& request,
                                                 std::optional<uint64_t> dummy_seed,
                                                 ThreadPool& threads);

}  // namespace lapidary
