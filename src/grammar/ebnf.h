// Grammars as users write them: GBNF (llama.cpp, `root ::= ...`; also xgrammar's EBNF) and the
// context-free core of Lark (`start: ...`). Which of the two is told by `::=`.
//
// Direct left recursion (`sum ::= sum "+" number | number`) is understood as a list; indirect left
// recursion is an error.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/grammar.h"

namespace lapidary::grammar {

// The texts of the rule `root` (GBNF) or `start` (Lark). Errors name the line.
Result<NodeId> AddEbnf(GrammarBuilder* builder, std::string_view text);

}  // namespace lapidary::grammar
