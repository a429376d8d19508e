// The form an answer must have: --json-schema, --regex, --choice, --grammar.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "grammar/constraint.h"

namespace lapidary {

struct ConstraintFlags {
  // At most one is given.
  std::optional<std::string> schema_file;
  std::optional<std::string> regex;
  std::vector<std::string> choices;
  std::optional<std::string> grammar_file;

  void AddTo(CLI::App& command);

  bool any() const { return schema_file || regex || !choices.empty() || grammar_file; }

  // Nothing if none is given. Reads files; a form that cannot be had is found when it is compiled,
  // which needs no weights.
  Result<std::optional<grammar::Constraint>> Read() const;
  // The one that is given, for errors; empty: none.
  const char* name() const;
};

}  // namespace lapidary
