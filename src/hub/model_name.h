// How a model is named that is to be found on the Hugging Face Hub:
//
//   google/gemma-4-E4B-it              a repository, at its main branch
//   google/gemma-4-E4B-it@v1.1         at a branch, a tag or a commit
//   unsloth/gemma-4-E4B-it-GGUF:Q4_K_M the file of that type among its GGUF files, as llama.cpp
//   e4b, e4b:q4_0                      a short name (known_models.h)
//
// Names come from outside and become parts of paths and URLs: what passes here is safe as both.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lapidary::hub {

struct ModelName {
  std::string repo;               // "google/gemma-4-E4B-it"
  std::string revision = "main";  // a branch, a tag or a commit
  std::string quant;              // of the GGUF file to take; empty: any
  std::string typed;              // as it was named, without the revision

  // What `pull` would be told: for messages.
  std::string Spelled() const { return revision == "main" ? typed : typed + "@" + revision; }
};

// "owner/name" as the Hub allows it.
bool IsRepoName(std::string_view text);

// Nothing where the text has neither form, and so may be a path; an error where it has one and
// names nothing: a format that a short name does not have, a revision that cannot be one.
Result<std::optional<ModelName>> ParseModelName(std::string_view text);

}  // namespace lapidary::hub
