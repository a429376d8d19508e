#include "text/jinja/template.h"

#include <algorithm>

#include "text/jinja/ast.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace lapidary::jinja {
namespace {

// Steps for what is rendered, so that little input never takes long. Templates that look through
// all messages for each of them, as Gemma's do, get so far with some 4,000 messages.
size_t StepsFor(const nlohmann::ordered_json& value, int max_depth) {
  constexpr size_t kStepsPerValue = 4'000;
  constexpr size_t kStepsPerByte = 16;
  if (value.is_string()) {
    return kStepsPerValue + kStepsPerByte * value.get_ref<const std::string&>().size();
  }
  size_t num_steps = kStepsPerValue;
  if (!value.is_structured() || max_depth == 0) return num_steps;
  for (const auto& child : value) num_steps += StepsFor(child, max_depth - 1);
  return num_steps;
}

}  // namespace

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
  constexpr size_t kStepsOfAnyInput = 2'000'000;
  size_t num_steps = kStepsOfAnyInput;
  for (const Variable& variable : variables) {
    num_steps += StepsFor(variable.value, limits_.value_depth);
  }
  Limits limits = limits_;
  limits.steps = std::min(limits.steps, num_steps);
  Evaluator evaluator(*tree_, limits);
  for (const Variable& variable : variables) RETURN_IF_ERROR(evaluator.Define(variable));
  ASSIGN_OR_RETURN(const Text text, evaluator.Run());
  return text.ToSegments();
}

}  // namespace lapidary::jinja
