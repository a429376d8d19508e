// JSON Schema to grammar: the texts of all values that fit.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "grammar/grammar.h"
#include "grammar/json_value.h"

namespace lapidary::grammar {

// How values are written.
struct ValueSyntax {
  enum Kind {
    // JSON. Behind { [ and , and before } and ]: nothing, a blank, or a newline and up to 20
    // blanks;
    // behind : nothing or a blank. Members in the schema's order.
    kJson,
    // Arguments of Gemma 4's tool calls: no blanks, bare keys in the order of jinja's dictsort,
    // strings without escapes between two `quote_token`s.
    kGemmaCall,
  };
  Kind kind = kJson;
  int32_t quote_token = -1;
};

// The texts of the values that fit `schema`.
Result<NodeId> AddSchema(GrammarBuilder* builder, const JsonValue& schema,
                         const ValueSyntax& syntax);

}  // namespace lapidary::grammar
