#include "text/jinja/template.h"

#include "text/jinja/ast.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace lapidary::jinja {

Template::Template(std::unique_ptr<const Tree> tree, const Limits& limits)
    : tree_(std::move(tree)), limits_(limits) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Result<Template> Template::Parse(std::string_view source, const Limits& limits) {
  ASSIGN_OR_RETURN(Tree tree, jinja::Parse(source, limits));
  return Template(std::make_unique<const Tree>(std::move(tree)), limits);
}

Result<std::vector<TextSegment>> Template::Render(const std::vector<Variable>& variables) const {
  Evaluator evaluator(*tree_, limits_);
  for (const Variable& variable : variables) RETURN_IF_ERROR(evaluator.Define(variable));
  ASSIGN_OR_RETURN(const Text text, evaluator.Run());
  return text.ToSegments();
}

}  // namespace lapidary::jinja
