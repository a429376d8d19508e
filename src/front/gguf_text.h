// The tokenizer, chat template and sampling defaults of a GGUF file.
#pragma once

#include <filesystem>

#include "front/text_model.h"

namespace lapidary {

// A file without a tokenizer or a template leaves an error in that member; one that cannot be used
// fails the whole. Stops are the file's end tokens and, where there is a chat template, those that
// end a turn. Sampling is what the file says (general.sampling.*), else Gemma 4's own settings with
// a template and greedy without.
Result<TextModel> LoadGgufText(const std::filesystem::path& path);

}  // namespace lapidary
