// The published Gemma 4 models that have a short name, where their files are on the Hugging Face
// Hub, and which of them fits a machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lapidary::hub {

struct KnownModel {
  std::string_view short_name;  // "e4b", as in the names of presets
  std::string_view hub_size;    // "E4B", as in the names of repositories
  int64_t bf16_bytes;           // text weights
  int64_t q4_0_bytes;           // of Google's GGUF file
  bool has_w4a16;               // Google publishes no such file of 26B-A4B
  bool reads_few_weights;       // for a token: a CPU answers at a readable pace
};

std::span<const KnownModel> KnownModels();  // by size

// By its short name, in any case; "26b" is "26b-a4b".
const KnownModel* FindKnownModel(std::string_view short_name);

// "google/gemma-4-E4B-it"
std::string CheckpointRepo(const KnownModel& model);

// The repository of the assistant that drafts for a repository's model, by its name; nothing for
// models that are not known to have one (base models, assistants, other families). Models that were
// trained for 4 bits have assistants of their own.
std::optional<std::string> AssistantRepo(std::string_view repo);

struct Suggestion {
  std::string name;  // "e2b:q4_0", as it is typed
  int64_t num_bytes = 0;
};

// The largest model that fits: of bf16 ones on a GPU of so many bytes that runs them; where there
// is none (0), of Q4_0 ones that a CPU with so much memory runs at a readable pace.
std::optional<Suggestion> SuggestModel(int64_t gpu_bytes, int64_t memory_bytes);

}  // namespace lapidary::hub
