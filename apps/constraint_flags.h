// The form an answer must have: --json-schema, --regex, --choice, --grammar.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "session/answer_rules.h"
#include "session/constraint_compiler.h"

namespace lapidary {

// A demand and the compiler that makes grammars of it for one model.
class AnswerForm {
 public:
  // `flag` is named in errors.
  AnswerForm(std::string flag, grammar::Constraint constraint,
             std::shared_ptr<ConstraintCompiler> compiler);

  // For answers before which a thought may come, or is open. The same again costs nothing.
  Result<std::shared_ptr<const grammar::CompiledGrammar>> Compile(
      grammar::Constraint::Thought thought) const;

 private:
  std::string flag_;
  grammar::Constraint constraint_;
  std::shared_ptr<ConstraintCompiler> compiler_;
};

struct ConstraintFlags {
  // At most one is given.
  std::optional<std::string> schema_file;
  std::optional<std::string> regex;
  std::vector<std::string> choices;
  std::optional<std::string> grammar_file;

  void AddTo(CLI::App& command);

  bool any() const { return schema_file || regex || !choices.empty() || grammar_file; }

  // Nothing if neither a form nor a rule is demanded. Reads files; a form that cannot be had is
  // found by its first Compile, which needs no weights.
  Result<std::optional<AnswerForm>> Read(std::shared_ptr<const TextModel> text, int32_t vocab_size,
                                         const AnswerRules& rules = {}) const;
};

}  // namespace lapidary
