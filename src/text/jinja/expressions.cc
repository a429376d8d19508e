// Evaluation of expressions.
#include "text/jinja/evaluator.h"

namespace lapidary::jinja {

Result<Value> Evaluator::Evaluate(const Expr& expr) {
  if (expr.kind == Expr::Kind::kConst) return expr.constant;
  RETURN_IF_ERROR(Enter(expr.line));
  if (expr.kind == Expr::Kind::kName) return Lookup(expr);
  ++depth_;
  auto value = EvaluateKind(expr);
  --depth_;
  if (!value.ok()) return AtLine(expr.line, value.error());
  return value;
}

Value Evaluator::Lookup(const Expr& expr) const {
  const Value* found = scope_->Find(expr.name);
  return found != nullptr ? *found : Value(Undefined{&expr});
}

Result<Value> Evaluator::EvaluateKind(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::kConst:
      return expr.constant;
    case Expr::Kind::kName:
      return Lookup(expr);
    case Expr::Kind::kCaptured:
      return captured_.back();
    case Expr::Kind::kList:
    case Expr::Kind::kTuple: {
      ASSIGN_OR_RETURN(std::vector<Value> items, EvaluateAll(expr, 0));
      return MakeList(std::move(items), budget_,
                      expr.kind == Expr::Kind::kList ? List::Kind::kList : List::Kind::kTuple);
    }
    case Expr::Kind::kDict:
      return EvaluateDict(expr);
    case Expr::Kind::kGetAttr: {
      ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.children[0]));
      return GetAttr(object, expr.text, &expr, budget_);
    }
    case Expr::Kind::kGetItem: {
      ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.children[0]));
      ASSIGN_OR_RETURN(const Value key, Evaluate(*expr.children[1]));
      return GetItem(object, key, &expr, budget_);
    }
    case Expr::Kind::kSlice:
      return EvaluateSlice(expr);
    case Expr::Kind::kCall:
      return EvaluateCall(expr);
    case Expr::Kind::kFilter: {
      ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.children[0]));
      ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expr));
      return ApplyFilter(expr.text, operand, arguments, budget_);
    }
    case Expr::Kind::kTest: {
      ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.children[0]));
      ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expr));
      ASSIGN_OR_RETURN(const bool passes, ApplyTest(expr.text, operand, arguments, budget_));
      return Value(passes);
    }
    case Expr::Kind::kNegate: {
      ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.children[0]));
      return Negate(operand);
    }
    case Expr::Kind::kPlus: {
      ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.children[0]));
      if (const auto number = operand.AsInt()) return Value(*number);
      if (operand.As<double>() != nullptr) return operand;
      if (const Undefined* undefined = operand.As<Undefined>()) return UndefinedError(*undefined);
      return MakeError("'+' does not apply to {}", operand.TypeName());
    }
    case Expr::Kind::kBinary: {
      ASSIGN_OR_RETURN(const Value left, Evaluate(*expr.children[0]));
      ASSIGN_OR_RETURN(const Value right, Evaluate(*expr.children[1]));
      return ApplyOperator(expr.ops[0], left, right, budget_);
    }
    case Expr::Kind::kCompare:
      return EvaluateCompare(expr);
    case Expr::Kind::kConcat:
      return EvaluateConcat(expr);
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      ASSIGN_OR_RETURN(Value left, Evaluate(*expr.children[0]));
      if (left.Truthy() == (expr.kind == Expr::Kind::kOr)) return left;
      return Evaluate(*expr.children[1]);
    }
    case Expr::Kind::kNot: {
      ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.children[0]));
      return Value(!operand.Truthy());
    }
    case Expr::Kind::kConditional: {
      ASSIGN_OR_RETURN(const Value condition, Evaluate(*expr.children[0]));
      if (condition.Truthy()) return Evaluate(*expr.children[1]);
      if (expr.children[2] == nullptr) return Value();
      return Evaluate(*expr.children[2]);
    }
  }
  return MakeError("an expression of unknown kind");
}

Result<std::vector<Value>> Evaluator::EvaluateAll(const Expr& expr, size_t first_child) {
  std::vector<Value> values;
  values.reserve(expr.children.size() - first_child);
  for (size_t child_idx = first_child; child_idx < expr.children.size(); ++child_idx) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[child_idx]));
    values.push_back(std::move(value));
  }
  return values;
}

Result<Value> Evaluator::EvaluateDict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t child_idx = 0; child_idx < expr.children.size(); child_idx += 2) {
    ASSIGN_OR_RETURN(Value key, Evaluate(*expr.children[child_idx]));
    ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[child_idx + 1]));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return MakeDict(std::move(entries), budget_);
}

Result<Value> Evaluator::EvaluateSlice(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.children[0]));
  Value bounds[3] = {None{}, None{}, None{}};
  for (size_t bound_idx = 0; bound_idx < 3; ++bound_idx) {
    if (expr.children[bound_idx + 1] == nullptr) continue;
    ASSIGN_OR_RETURN(bounds[bound_idx], Evaluate(*expr.children[bound_idx + 1]));
  }
  return Slice(object, bounds[0], bounds[1], bounds[2], budget_);
}

Result<Arguments> Evaluator::EvaluateArguments(const Expr& expr) {
  Arguments arguments;
  ASSIGN_OR_RETURN(arguments.positional, EvaluateAll(expr, 1));
  for (const auto& [name, child] : expr.keywords) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*child));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

Result<Value> Evaluator::EvaluateCall(const Expr& expr) {
  const Expr& callee = *expr.children[0];
  Value function;
  if (callee.kind == Expr::Kind::kGetAttr) {  // object.method(...), without making a method value.
    ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.children[0]));
    if (HasMethod(object, callee.text)) {
      ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expr));
      return CallMethod(object, callee.text, arguments, budget_);
    }
    ASSIGN_OR_RETURN(function, GetAttr(object, callee.text, &callee, budget_));
  } else {
    ASSIGN_OR_RETURN(function, Evaluate(callee));
  }
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
  if (const auto* macro = function.As<const Stmt*>())
    return CallMacro(**macro, std::move(arguments));
  if (const auto* method = function.As<std::shared_ptr<const Method>>()) {
    return CallMethod((*method)->receiver, (*method)->name, arguments, budget_);
  }
  if (const Builtin* builtin = function.As<Builtin>()) {
    if (*builtin == Builtin::kNamespace) return MakeNamespace(arguments);
    return CallBuiltin(*builtin, arguments, budget_);
  }
  if (const Undefined* undefined = function.As<Undefined>()) return UndefinedError(*undefined);
  return MakeError("a {} cannot be called", function.TypeName());
}

Result<Value> Evaluator::EvaluateCompare(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expr.children[0]));
  for (size_t op_idx = 0; op_idx < expr.ops.size(); ++op_idx) {
    ASSIGN_OR_RETURN(Value right, Evaluate(*expr.children[op_idx + 1]));
    ASSIGN_OR_RETURN(const bool holds, Compare(expr.ops[op_idx], left, right, budget_));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::EvaluateConcat(const Expr& expr) {
  Text result;
  for (const ExprPtr& child : expr.children) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*child));
    ASSIGN_OR_RETURN(const Text text, ToText(value, budget_));
    ASSIGN_OR_RETURN(result, Concat(result, text, budget_));
  }
  return Value(std::move(result));
}

}  // namespace lapidary::jinja
