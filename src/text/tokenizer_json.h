// Reading a tokenizer.json of the `tokenizers` package, as far as Gemma 4 uses the format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/merge_list.h"
#include "text/vocabulary.h"

namespace lapidary {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;  // matched after the others, in the text between them
};

struct TokenizerFile {
  Vocabulary vocabulary;  // added tokens included
  MergeList merges;
  std::vector<AddedToken> added_tokens;
};

// Accepts exactly what the tokenizer implements: the normalizer that turns a space into U+2581, a
// pre-tokenizer that can never match after it, BPE with byte fallback, and the matching decoder.
// Anything else is an error that names the field, since it would change ids without a sign.
//
// Not applied, and so not checked: `truncation` and `padding` (left behind by whoever saved the
// file; callers of the package set them per call) and `post_processor` (it adds <bos>, which is the
// caller's choice here).
Result<TokenizerFile> ParseTokenizerJson(std::string_view text);

}  // namespace lapidary
