// What a request says about the form of its answer: OpenAI's response_format and tool_choice,
// vLLM's structured_outputs and guided_*, llama.cpp's json_schema and grammar.
#pragma once

#include <optional>
#include <string>

#include "grammar/constraint.h"
#include "request/answer_request.h"
#include "server/request_json.h"

namespace lapidary {

// Everything but tools. At most one of the fields may be there; *field is its name.
void ReadConstraint(RequestFields* fields, std::optional<grammar::Constraint>* constraint,
                    std::string* field);

struct ToolRules {
  bool single_call = false;  // at most one
  bool all_strict = false;   // calls fit their schemas, whether or not the tools say so
};

// tool_choice, and tools that are strict: calls of `tools`, a list that was checked. "none" clears
// *tools.
void ReadToolChoice(RequestFields* fields, const ToolRules& rules,
                    std::optional<OrderedJson>* tools, ToolCallRules* calls);

// thinking_token_budget, or what Anthropic (thinking.budget_tokens) and OpenRouter
// (reasoning.max_tokens) call it.
void ReadThinkingBudget(RequestFields* fields, int32_t* thinking_token_budget);

}  // namespace lapidary
