#include "apps/constraint_flags.h"

#include <utility>

#include "base/read_file.h"
#include "front/prompt.h"

namespace lapidary {
namespace {

using grammar::Constraint;

Result<std::string> ReadText(const char* flag, const std::string& path) {
  Result<std::string> text = ReadFile(path, kMaxConfigFileBytes);
  if (!text.ok()) return MakeError("{}: {}", flag, text.error().message);
  RETURN_IF_ERROR(CheckUtf8(*text, flag));
  return text;
}

}  // namespace

void ConstraintFlags::AddTo(CLI::App& command) {
  constexpr const char* kGroup = "Form of the answer (at most one)";
  // Unlike CLI11's own optional texts, "" counts as given.
  const auto add_text = [&](const char* name, std::optional<std::string>& field, const char* help) {
    return command.add_option_function<std::string>(
        name, [&field](const std::string& text) { field = text; }, help);
  };
  CLI::Option* const options[] = {
      add_text("--json-schema", schema_file, "JSON that fits the JSON Schema in this file")
          ->type_name("FILE"),
      add_text("--regex", regex, "A text that this regular expression matches as a whole")
          ->type_name("REGEX"),
      command.add_option("--choice", choices, "One of these texts; given once for each")
          ->type_name("TEXT")
          ->allow_extra_args(false),
      add_text("--grammar", grammar_file,
               "A text of the grammar in this file: llama.cpp's GBNF, or Lark's")
          ->type_name("FILE")};
  for (size_t i = 0; i < std::size(options); ++i) {
    options[i]->group(kGroup);
    for (size_t j = 0; j < i; ++j) options[i]->excludes(options[j]);
  }
}

const char* ConstraintFlags::name() const {
  if (schema_file) return "--json-schema";
  if (regex) return "--regex";
  if (!choices.empty()) return "--choice";
  return grammar_file ? "--grammar" : "";
}

Result<std::optional<Constraint>> ConstraintFlags::Read() const {
  if (!any()) return std::optional<Constraint>();
  const char* const flag = name();
  Constraint constraint;
  if (schema_file) {
    constraint.kind = Constraint::Kind::kJsonSchema;
    ASSIGN_OR_RETURN(constraint.text, ReadText(flag, *schema_file));
  } else if (regex) {
    constraint.kind = Constraint::Kind::kRegex;
    RETURN_IF_ERROR(CheckUtf8(*regex, flag));
    constraint.text = *regex;
  } else if (!choices.empty()) {
    constraint.kind = Constraint::Kind::kChoice;
    for (const std::string& choice : choices) RETURN_IF_ERROR(CheckUtf8(choice, flag));
    constraint.choices = choices;
  } else {
    constraint.kind = Constraint::Kind::kGrammar;
    ASSIGN_OR_RETURN(constraint.text, ReadText(flag, *grammar_file));
  }
  return std::optional<Constraint>(std::move(constraint));
}

}  // namespace lapidary
