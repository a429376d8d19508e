// What a request may demand of its answer's text, and how that becomes a grammar.
//
//   ASSIGN_OR_RETURN(auto compiled, Compile(constraint, context));   // slow: milliseconds
//   Matcher matcher(compiled);                                      // one for each generation
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/matcher.h"

namespace lapidary::grammar {

// A tool that the answer may call.
struct CallableTool {
  std::string name = {};
  std::string parameters = {};  // JSON Schema of the arguments; empty: takes none
  bool strict = true;           // else the arguments are only well-formed
  auto operator<=>(const CallableTool&) const = default;
};

struct Constraint {
  enum class Kind {
    kJsonObject,     // any JSON object
    kJsonSchema,     // JSON that fits `text`
    kRegex,          // a text of the regular expression `text`
    kChoice,         // one of `choices`
    kGrammar,        // a text of the grammar `text` (ebnf.h)
    kStructuralTag,  // free text with constrained passages: `text` as vLLM has it
    kToolCalls,      // one or more calls of `tools`, or free text with calls in it
    kAnything,       // any answer: only its thoughts have a limit, and its tokens rules
  };
  enum class Thought {
    kNone,     // the answer begins at once
    kMayOpen,  // a thought may come first
    kIsOpen,   // the prompt ends inside a thought
  };

  Kind kind = Kind::kJsonObject;
  std::string text = {};
  std::vector<std::string> choices = {};
  std::vector<CallableTool> tools = {};  // with another form: calls may come in place of it
  bool must_call = false;                // tool calls and nothing else
  bool many_calls = true;                // more than one
  Thought thought = Thought::kNone;
  int32_t max_thought_tokens = -1;  // after which thoughts must end; -1: any number
  TokenRules rules = {};            // tokens that the vocabulary lacks are passed over

  auto operator<=>(const Constraint&) const = default;
};

// The special tokens of Gemma 4 that constraints speak of; -1 where the vocabulary has none.
struct ControlTokens {
  int32_t tool_call_begin = -1;
  int32_t tool_call_end = -1;
  int32_t string_quote = -1;
  int32_t thought_begin = -1;
  int32_t thought_end = -1;
};

struct CompileContext {
  std::shared_ptr<const TokenVocabulary> vocabulary = {};
  ControlTokens control = {};
  std::vector<int32_t> stop_tokens = {};  // those that end an answer
  TextSpeller spell = {};                 // spells text that must come, so that it can be drafted
  std::shared_ptr<GrammarMemory> memory = {};  // of all grammars; null: not counted
};

// Errors are one sentence for whoever sent the constraint. Takes time and memory in proportion to
// the constraint, up to limits that the errors name. With `work`, an error of kind kBusy when that
// account is empty: nothing of what was done is kept.
Result<std::shared_ptr<const CompiledGrammar>> Compile(const Constraint& constraint,
                                                       const CompileContext& context,
                                                       Work* work = nullptr);

}  // namespace lapidary::grammar
