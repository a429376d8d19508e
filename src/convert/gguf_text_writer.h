// What a checkpoint directory says about text, as a GGUF file's metadata.
#pragma once

#include <filesystem>

#include "gguf/gguf_writer.h"

namespace lapidary {

// Tokenizer, chat template, end tokens and sampling defaults, as far as they are there. Ids up to
// `vocab_size` that the tokenizer does not have get unused tokens.
Status AddTextMetadata(const std::filesystem::path& directory, int vocab_size, GgufWriter& writer);

}  // namespace lapidary
