// MODEL as users name it: a path, a bundled model, or a name on the Hugging Face Hub whose files
// are fetched if they are not here. The commands and the library find their models by it.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "base/result.h"

namespace lapidary {

// What is read of a model.
struct ModelParts {
  bool weights = true;  // else presets stay presets: only what is known without weights is fetched
  bool text = true;     // tokenizer and chat template
  bool media = true;    // image and audio towers that are files of their own
  // Where the assistant is named that drafts; null: none does. It may be named as models are.
  std::string* assistant = nullptr;
  // Where *assistant is empty, the model's own is fetched and named there.
  bool fetches_assistant = true;
};

// A model that was found on the Hub or in its cache.
struct HubNames {
  std::string typed;  // "e4b:q4_0"
  std::string repo;   // "google/gemma-4-E4B-it-qat-q4_0-gguf"
};

// Replaces a name by the path of its files; a path, or what is neither, stays as it is. In that
// order: what is here under that path, a bundled model, a name on the Hub. Once `cancelled` is set,
// fetching ends with an error; what has arrived stays.
Result<std::optional<HubNames>> FindNamedModel(std::string* model, const ModelParts& parts,
                                               const std::atomic<bool>& cancelled);

// Whether a text is a name on the Hub by its form.
bool IsHubName(const std::string& text);

// A name that means a GGUF file of the Hub, as llama.cpp's -hf does.
std::string GgufOfHub(const std::string& name);

}  // namespace lapidary
