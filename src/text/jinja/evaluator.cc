// Statements, scopes and macros. Expressions are in expressions.cc.
#include "text/jinja/evaluator.h"

#include <algorithm>

#include "base/excerpt.h"

namespace lapidary::jinja {

// Of a message: raise_exception takes any text, names may be as long as the template, and every
// level of a nested evaluation copies it.
constexpr size_t kMaxErrorChars = 1000;

Error AtLine(int line, const Error& error) {
  if (error.message.starts_with("line ") && error.message.size() <= kMaxErrorChars) return error;
  const std::string message = Excerpt(error.message, kMaxErrorChars);
  if (message.starts_with("line ")) return Error{message};
  return MakeError("line {}: {}", line, message);
}

Error UndefinedError(const Undefined& undefined) {
  const Expr* origin = undefined.origin;
  if (origin == nullptr) return MakeError("an undefined value is used");
  if (origin->kind == Expr::Kind::kName) return MakeError("'{}' is undefined", origin->text);
  if (origin->kind == Expr::Kind::kGetAttr)
    return MakeError("there is no attribute '{}'", origin->text);
  return MakeError("there is no such item");
}

const Value* Evaluator::Scope::Find(NameId name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [id, value] : scope->variables) {
      if (id == name) return &value;
    }
  }
  return nullptr;
}

void Evaluator::Scope::Set(NameId name, Value value) {
  for (auto& [id, existing] : variables) {
    if (id == name) {
      existing = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Evaluator::Evaluator(const Tree& tree, const Limits& limits) : tree_(tree), budget_(limits) {
  static constexpr std::pair<std::string_view, Builtin> kFunctions[] = {
      {"range", Builtin::kRange},
      {"namespace", Builtin::kNamespace},
      {"dict", Builtin::kDict},
      {"raise_exception", Builtin::kRaiseException},
      {"strftime_now", Builtin::kStrftimeNow}};
  for (size_t name_idx = 0; name_idx < tree.names.size(); ++name_idx) {
    if (tree.names[name_idx] == "loop") loop_name_ = static_cast<NameId>(name_idx);
    for (const auto& [name, function] : kFunctions) {
      if (tree.names[name_idx] == name) inputs_.Set(static_cast<NameId>(name_idx), Value(function));
    }
  }
}

Evaluator::~Evaluator() {
  // Namespaces may hold each other: empty them all before the first is freed.
  for (const auto& space : namespaces_) space->attributes.clear();
}

Status Evaluator::Define(const Variable& variable) {
  const auto name = std::find(tree_.names.begin(), tree_.names.end(), variable.name);
  if (name == tree_.names.end()) return {};  // The template never asks for it.
  Value value;
  if (variable.trusted) {
    CHECK(variable.value.is_string()) << variable.name;
    value = Value(Text(variable.value.get<std::string>(), /*trusted=*/true));
  } else {
    auto converted = FromJson(variable.value, budget_);
    if (!converted.ok()) return MakeError("'{}': {}", variable.name, converted.error().message);
    value = std::move(*converted);
  }
  inputs_.Set(static_cast<NameId>(name - tree_.names.begin()), std::move(value));
  return {};
}

Result<Text> Evaluator::Run() {
  RETURN_IF_ERROR(Execute(tree_.body));
  return output_;
}

Status Evaluator::Enter(int line) {
  if (depth_ >= budget_.limits().eval_depth) {
    return MakeError("line {}: macros or expressions are nested too deep", line);
  }
  if (Status status = budget_.Step(); !status.ok()) return AtLine(line, status.error());
  return {};
}

Result<Evaluator::Flow> Evaluator::Execute(const Block& block) {
  for (const auto& stmt : block) {
    RETURN_IF_ERROR(Enter(stmt->line));
    ++depth_;
    auto flow = ExecuteOne(*stmt);
    --depth_;
    if (!flow.ok()) return AtLine(stmt->line, flow.error());
    if (*flow != Flow::kNormal) return *flow;
  }
  return Flow::kNormal;
}

Result<Evaluator::Flow> Evaluator::ExecuteOne(const Stmt& stmt) {
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      RETURN_IF_ERROR(Output(Value(stmt.text), stmt.line));
      break;
    case Stmt::Kind::kOutput: {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*stmt.expr));
      RETURN_IF_ERROR(Output(value, stmt.line));
      break;
    }
    case Stmt::Kind::kIf:
      return ExecuteIf(stmt);
    case Stmt::Kind::kFor:
      return ExecuteFor(stmt);
    case Stmt::Kind::kSet: {
      ASSIGN_OR_RETURN(Value value, Evaluate(*stmt.expr));
      RETURN_IF_ERROR(Assign(*stmt.target, std::move(value)));
      break;
    }
    case Stmt::Kind::kSetBlock:
    case Stmt::Kind::kFilterBlock:
      RETURN_IF_ERROR(ExecuteCaptured(stmt));
      break;
    case Stmt::Kind::kMacro:
      scope_->Set(stmt.name, Value(&stmt));
      break;
    case Stmt::Kind::kScope: {
      Scope scope{scope_, {}};
      ASSIGN_OR_RETURN(const Text text, Capture(stmt.body, &scope));
      RETURN_IF_ERROR(Output(Value(text), stmt.line));
      break;
    }
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Result<Evaluator::Flow> Evaluator::ExecuteIf(const Stmt& stmt) {
  for (const Stmt::Branch& branch : stmt.branches) {
    if (branch.condition != nullptr) {
      ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch.condition));
      if (!condition.Truthy()) continue;
    }
    return Execute(branch.body);
  }
  return Flow::kNormal;
}

Result<std::shared_ptr<const List>> Evaluator::LoopItems(const Stmt& stmt) {
  ASSIGN_OR_RETURN(const Value sequence, Evaluate(*stmt.expr));
  ASSIGN_OR_RETURN(auto list, IterateLazily(sequence, budget_));
  if (stmt.filter == nullptr) return list;
  auto kept = std::make_shared<List>();
  Scope scope{scope_, {}};
  Scope* const outer = std::exchange(scope_, &scope);
  Status status;
  for (size_t item_idx = 0; item_idx < list->size(); ++item_idx) {
    const Value item = list->At(item_idx);
    status = Assign(*stmt.target, item);
    if (!status.ok()) break;
    auto passes = Evaluate(*stmt.filter);
    if (!passes.ok()) status = passes.error();
    if (!status.ok()) break;
    if (!passes->Truthy()) continue;
    status = budget_.Make(sizeof(Value));
    if (!status.ok()) break;
    kept->items.push_back(item);
  }
  scope_ = outer;
  if (!status.ok()) return status.error();
  return std::shared_ptr<const List>(std::move(kept));
}

Result<Evaluator::Flow> Evaluator::ExecuteFor(const Stmt& stmt) {
  ASSIGN_OR_RETURN(const auto items, LoopItems(stmt));
  auto loop = std::make_shared<Loop>();
  loop->items = items;
  loop->depth = ++loop_depths_.back();
  Scope* const outer = scope_;
  Scope scope{outer, {}};
  scope_ = &scope;
  Result<Flow> flow = Flow::kNormal;
  bool completed = false;  // jinja2 runs the else unless one turn reached the end of the body.
  for (size_t item_idx = 0; item_idx < items->size(); ++item_idx) {
    scope.variables.clear();
    loop->index = item_idx;
    if (loop_name_ >= 0) scope.Set(loop_name_, Value(std::shared_ptr<const Loop>(loop)));
    Status ready = budget_.Step();
    if (ready.ok()) ready = Assign(*stmt.target, items->At(item_idx));
    if (!ready.ok()) {
      flow = ready.error();
      break;
    }
    flow = Execute(stmt.body);
    if (!flow.ok() || *flow == Flow::kBreak) break;
    completed |= *flow == Flow::kNormal;
  }
  scope.variables.clear();
  --loop_depths_.back();
  if (flow.ok()) flow = completed ? Flow::kNormal : Execute(stmt.otherwise);
  scope_ = outer;
  return flow;
}

Status Evaluator::ExecuteCaptured(const Stmt& stmt) {
  Scope scope{scope_, {}};
  ASSIGN_OR_RETURN(Text text, Capture(stmt.body, &scope));
  captured_.emplace_back(std::move(text));
  auto value = Evaluate(*stmt.expr);
  captured_.pop_back();
  if (!value.ok()) return value.error();
  if (stmt.kind == Stmt::Kind::kFilterBlock) return Output(*value, stmt.line);
  return Assign(*stmt.target, std::move(*value));
}

Status Evaluator::Assign(const Expr& target, Value value) {
  if (target.kind == Expr::Kind::kName) {
    scope_->Set(target.name, std::move(value));
    return {};
  }
  if (target.kind == Expr::Kind::kGetAttr) {
    const Value* object = scope_->Find(target.children[0]->name);
    const auto* space = object != nullptr ? object->As<std::shared_ptr<Namespace>>() : nullptr;
    if (space == nullptr) {
      return MakeError("'{}' is not a namespace; only its attributes can be set",
                       tree_.names[target.children[0]->name]);
    }
    for (auto& [name, existing] : (*space)->attributes) {
      if (name == target.text) {
        existing = std::move(value);
        return {};
      }
    }
    (*space)->attributes.emplace_back(target.text, std::move(value));
    return {};
  }
  ASSIGN_OR_RETURN(const auto list, Iterate(value, budget_));
  if (list->items.size() != target.children.size()) {
    return MakeError("{} values cannot be unpacked into {} names", list->items.size(),
                     target.children.size());
  }
  for (size_t item_idx = 0; item_idx < list->items.size(); ++item_idx) {
    RETURN_IF_ERROR(Assign(*target.children[item_idx], list->items[item_idx]));
  }
  return {};
}

Status Evaluator::Output(const Value& value, int line) {
  ASSIGN_OR_RETURN(const Text text, ToText(value, budget_));
  RETURN_IF_ERROR(budget_.Make(text.size()));
  if (text.size() > budget_.limits().output_bytes - output_.size()) {
    return MakeError("line {}: the output is longer than {} bytes", line,
                     budget_.limits().output_bytes);
  }
  output_.Append(text);
  return {};
}

Result<Text> Evaluator::Capture(const Block& body, Scope* scope) {
  Scope* const outer_scope = std::exchange(scope_, scope);
  Text outer_output = std::exchange(output_, Text::Builder());
  auto flow = Execute(body);
  Text text = std::exchange(output_, std::move(outer_output));
  scope_ = outer_scope;
  if (!flow.ok()) return flow.error();
  return text;
}

Result<Value> Evaluator::CallMacro(const Stmt& macro, Arguments arguments) {
  if (arguments.positional.size() > macro.params.size()) {
    return MakeError("macro '{}' takes {} arguments, {} were given", macro.text.view(),
                     macro.params.size(), arguments.positional.size());
  }
  Scope scope{&top_, {}};
  std::vector<bool> given(macro.params.size(), false);
  for (size_t position = 0; position < arguments.positional.size(); ++position) {
    scope.variables.emplace_back(macro.params[position].name,
                                 std::move(arguments.positional[position]));
    given[position] = true;
  }
  for (auto& [name, value] : arguments.named) {
    size_t position = 0;
    while (position < macro.params.size() && tree_.names[macro.params[position].name] != name)
      ++position;
    if (position == macro.params.size()) {
      return MakeError("macro '{}' has no argument '{}'", macro.text.view(), name);
    }
    if (given[position]) {
      return MakeError("macro '{}': argument '{}' is given twice", macro.text.view(), name);
    }
    scope.variables.emplace_back(macro.params[position].name, std::move(value));
    given[position] = true;
  }
  Scope* const outer = std::exchange(scope_, &scope);
  Status status;
  for (size_t position = 0; position < macro.params.size() && status.ok(); ++position) {
    if (given[position]) continue;
    const Stmt::Param& param = macro.params[position];
    Result<Value> value = Value();
    if (param.default_value != nullptr) value = Evaluate(*param.default_value);
    if (value.ok()) {
      scope.variables.emplace_back(param.name, std::move(*value));
    } else {
      status = value.error();
    }
  }
  scope_ = outer;
  if (!status.ok()) return status.error();
  loop_depths_.push_back(0);
  auto text = Capture(macro.body, &scope);
  loop_depths_.pop_back();
  if (!text.ok()) return text.error();
  return Value(std::move(*text));
}

Result<Value> Evaluator::MakeNamespace(const Arguments& arguments) {
  RETURN_IF_ERROR(budget_.Make(sizeof(Namespace) + arguments.named.size() * 2 * sizeof(Value)));
  auto space = std::make_shared<Namespace>();
  if (arguments.positional.size() > 1) return MakeError("namespace takes one dict at most");
  for (const Value& source : arguments.positional) {
    if (source.AsDict() == nullptr)
      return MakeError("namespace takes a dict, not {}", source.TypeName());
    for (const auto& [key, value] : source.AsDict()->entries()) {
      if (key.AsText() == nullptr) return MakeError("names of a namespace must be text");
      space->attributes.emplace_back(std::string(key.AsText()->view()), value);
    }
  }
  for (const auto& [name, value] : arguments.named) space->attributes.emplace_back(name, value);
  namespaces_.push_back(space);
  return Value(std::move(space));
}

}  // namespace lapidary::jinja
