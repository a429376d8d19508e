// The tokenizer of synthetic checkpoints: Gemma 4's own tokenizer.json form, bytes only.
#pragma once

#include "base/json_fields.h"

namespace lapidary {

// Special tokens, newline and the 256 byte tokens at their real ids as far as `vocab_size` reaches,
// the space mark at its real id or at 494, every other id an unused name; no merges. Vocabularies
// below 495 cannot hold the bytes: an error.
Result<nlohmann::ordered_json> ByteTokenizer(int vocab_size);

}  // namespace lapidary
