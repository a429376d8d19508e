// MODEL arguments: a path, a bundled model, or a name on the Hugging Face Hub whose files are
// fetched if they are not here.
#pragma once

#include <optional>
#include <string>

#include "apps/draft_flags.h"
#include "base/result.h"

namespace lapidary {

// What a command reads of its model.
struct ModelNeeds {
  bool weights = true;  // else presets stay presets: only what is known without weights is fetched
  bool text = true;     // tokenizer and chat template
  bool media = true;    // image and audio towers that are files of their own
  // Null, or the flags of a command that drafts: where they name no assistant and leave drafting
  // on, the model's own is fetched and named in them.
  DraftFlags* drafting = nullptr;
};

// A model that was found on the Hub or in its cache.
struct HubNames {
  std::string typed;  // "e4b:q4_0"
  std::string repo;   // "google/gemma-4-E4B-it-qat-q4_0-gguf"
};

// Replaces a name by the path of its files; a path, or what is neither, stays as it is. In that
// order: what is here under that path, a bundled model, a name on the Hub. Ctrl-C while files are
// fetched ends the process; what has arrived stays.
Result<std::optional<HubNames>> FindModel(std::string* model, const ModelNeeds& needs);
// The same, and the bundled pebble-e where the user named none.
Result<std::optional<HubNames>> FindModelOrDefault(std::string* model, const ModelNeeds& needs);

// Whether a text is a name on the Hub by its form.
bool IsHubName(const std::string& text);

// -hf NAME[:QUANT], as llama.cpp has it: a GGUF file of the Hub, as MODEL. `model` must be empty.
Status TakeHubFlag(const std::string& hf_repo, std::string* model);
inline constexpr const char* kHubFlagHelp =
    "NAME[:QUANT], also as -hf: a GGUF file of a repository on the Hugging Face Hub, with its "
    "towers and assistant; the same as MODEL NAME:QUANT";

}  // namespace lapidary
