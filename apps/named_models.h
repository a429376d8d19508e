// MODEL arguments of the commands (session/named_model.h).
#pragma once

#include <optional>
#include <string>

#include "apps/draft_flags.h"
#include "base/result.h"
#include "session/named_model.h"

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

// As FindNamedModel. Ctrl-C while files are fetched ends the process; what has arrived stays.
Result<std::optional<HubNames>> FindModel(std::string* model, const ModelNeeds& needs);
// The same; where the user named none, the model of $LAPIDARY_MODEL, or else the bundled pebble-e.
Result<std::optional<HubNames>> FindModelOrDefault(std::string* model, const ModelNeeds& needs);

// -hf NAME[:QUANT], as llama.cpp has it: a GGUF file of the Hub, as MODEL. `model` must be empty.
Status TakeHubFlag(const std::string& hf_repo, std::string* model);
inline constexpr const char* kHubFlagHelp =
    "NAME[:QUANT], also as -hf: a GGUF file of a repository on the Hugging Face Hub, with its "
    "towers and assistant; the same as MODEL NAME:QUANT";

}  // namespace lapidary
