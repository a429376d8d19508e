#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/text_ops.h"

namespace lapidary::jinja {
namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

Error NotSupported(Op op, const Value& left, const Value& right) {
  return MakeError("'{}' does not apply to {} and {}", kSymbols[static_cast<int>(op)],
                   left.TypeName(), right.TypeName());
}

Result<Value> IntPower(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) return MakeError("0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Int result = 1;
  if (base == 0 || base == 1) return Value(exponent == 0 ? Int{1} : base);
  if (base == -1) return Value(exponent % 2 == 0 ? Int{1} : Int{-1});
  for (Int turn = 0; turn < exponent; ++turn) {
    if (__builtin_mul_overflow(result, base, &result)) return MakeError("an integer is too large");
  }
  return Value(result);
}

Result<Value> IntArithmetic(Op op, Int left, Int right) {
  Int result = 0;
  bool overflow = false;
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(left, right, &result);
      break;
    case Op::kSub:
      overflow = __builtin_sub_overflow(left, right, &result);
      break;
    case Op::kMul:
      overflow = __builtin_mul_overflow(left, right, &result);
      break;
    case Op::kPow:
      return IntPower(left, right);
    default: {
      if (right == 0) return MakeError("division by zero");
      if (op == Op::kDiv) return Value(static_cast<double>(left) / static_cast<double>(right));
      if (right == -1) return IntArithmetic(Op::kMul, left, op == Op::kMod ? 0 : -1);
      const Int remainder = left % right;
      const bool adjust = remainder != 0 && (remainder < 0) != (right < 0);  // Python rounds down.
      result = op == Op::kMod ? remainder + (adjust ? right : 0) : left / right - (adjust ? 1 : 0);
    }
  }
  if (overflow) return MakeError("an integer is too large");
  return Value(result);
}

Result<Value> FloatArithmetic(Op op, double left, double right) {
  switch (op) {
    case Op::kAdd:
      return Value(left + right);
    case Op::kSub:
      return Value(left - right);
    case Op::kMul:
      return Value(left * right);
    case Op::kPow: {
      if (left == 0 && right < 0) return MakeError("0 cannot be raised to a negative power");
      if (left < 0 && std::isfinite(left) && std::floor(right) != right) {
        return MakeError("a negative number cannot be raised to a fraction");
      }
      const double power = std::pow(left, right);
      if (std::isinf(power) && std::isfinite(left) && std::isfinite(right)) {
        return MakeError("a number is too large");
      }
      return Value(power);
    }
    default:
      break;
  }
  if (right == 0) return MakeError("division by zero");
  if (op == Op::kDiv) return Value(left / right);
  double remainder = std::fmod(left, right);
  double quotient = (left - remainder) / right;
  if (remainder != 0) {
    if ((right < 0) != (remainder < 0)) {
      remainder += right;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, right);
  }
  if (op == Op::kMod) return Value(remainder);
  if (quotient == 0) return Value(std::copysign(0.0, left / right));
  const double floored = std::floor(quotient);
  return Value(quotient - floored > 0.5 ? floored + 1 : floored);
}

Result<Value> RepeatList(const List& list, Int count, Budget& budget) {
  std::vector<Value> items;
  for (Int turn = 0; turn < count && !list.items.empty(); ++turn) {
    RETURN_IF_ERROR(budget.Make(list.items.size() * sizeof(Value)));
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return MakeList(std::move(items), budget, list.kind);
}

Result<Value> Multiply(const Value& left, const Value& right, Budget& budget) {
  const Value& sequence = left.AsInt() ? right : left;
  const auto count = left.AsInt() ? left.AsInt() : right.AsInt();
  if (!count) return NotSupported(Op::kMul, left, right);
  if (*count > INT64_MAX || *count < INT64_MIN) return MakeError("an integer is too large");
  const Int bounded = std::max(*count, Int{0});
  if (const Text* text = sequence.AsText()) {
    ASSIGN_OR_RETURN(Text repeated, Repeat(*text, static_cast<int64_t>(bounded), budget));
    return Value(std::move(repeated));
  }
  const List* list = sequence.AsList();
  if (list != nullptr && (list->kind == List::Kind::kList || list->kind == List::Kind::kTuple)) {
    return RepeatList(*list, bounded, budget);
  }
  return NotSupported(Op::kMul, left, right);
}

Result<bool> Contains(const Value& container, const Value& item, Budget& budget) {
  if (const Text* text = container.AsText()) {
    if (const Undefined* undefined = item.As<Undefined>()) return UndefinedError(*undefined);
    if (item.AsText() == nullptr) {
      return MakeError("'in' on text needs text, not {}", item.TypeName());
    }
    RETURN_IF_ERROR(budget.Scan(text->size()));
    return text->view().find(item.AsText()->view()) != std::string_view::npos;
  }
  if (const Dict* dict = container.AsDict()) {
    if (!item.Hashable()) {
      return MakeError("a {} cannot be a dict key", item.TypeName());
    }
    return dict->Find(item) != nullptr;
  }
  if (container.IsUndefined()) return false;
  if (const List* list = container.AsList()) {
    for (size_t item_idx = 0; item_idx < list->size(); ++item_idx) {
      ASSIGN_OR_RETURN(const bool equal, Equals(list->At(item_idx), item, budget));
      if (equal) return true;
    }
    return false;
  }
  return MakeError("'in' does not apply to {}", container.TypeName());
}

}  // namespace

Result<Text> Concat(const Text& left, const Text& right, Budget& budget) {
  RETURN_IF_ERROR(budget.Make(left.empty() || right.empty() ? 0 : left.AppendCost(right.size())));
  Text result = left;
  result.Append(right);
  return result;
}

Result<Value> ApplyOperator(Op op, const Value& left, const Value& right, Budget& budget) {
  if (op == Op::kMod && left.AsText() != nullptr) {
    return MakeError("formatting text with '%' is not supported");
  }
  for (const Value* side : {&left, &right}) {
    if (const Undefined* undefined = side->As<Undefined>()) return UndefinedError(*undefined);
  }
  if (op == Op::kAdd) {
    if (left.AsText() != nullptr && right.AsText() != nullptr) {
      ASSIGN_OR_RETURN(Text joined, Concat(*left.AsText(), *right.AsText(), budget));
      return Value(std::move(joined));
    }
    const List* left_list = left.AsList();
    const List* right_list = right.AsList();
    if (left_list != nullptr && right_list != nullptr && left_list->kind == right_list->kind &&
        (left_list->kind == List::Kind::kList || left_list->kind == List::Kind::kTuple)) {
      RETURN_IF_ERROR(
          budget.Make((left_list->items.size() + right_list->items.size()) * sizeof(Value)));
      std::vector<Value> items = left_list->items;
      items.insert(items.end(), right_list->items.begin(), right_list->items.end());
      return MakeList(std::move(items), budget, left_list->kind);
    }
  }
  if (const auto left_int = left.AsInt(), right_int = right.AsInt(); left_int && right_int) {
    return IntArithmetic(op, *left_int, *right_int);
  }
  if (const auto left_number = left.AsNumber(), right_number = right.AsNumber();
      left_number && right_number) {
    return FloatArithmetic(op, *left_number, *right_number);
  }
  if (op == Op::kMul) return Multiply(left, right, budget);
  return NotSupported(op, left, right);
}

Result<bool> Compare(Op op, const Value& left, const Value& right, Budget& budget) {
  switch (op) {
    case Op::kEq:
      return Equals(left, right, budget);
    case Op::kNe: {
      ASSIGN_OR_RETURN(const bool equal, Equals(left, right, budget));
      return !equal;
    }
    case Op::kIn:
      return Contains(right, left, budget);
    case Op::kNotIn: {
      ASSIGN_OR_RETURN(const bool found, Contains(right, left, budget));
      return !found;
    }
    case Op::kLt:
      return LessThan(left, right, budget);
    case Op::kGt:
      return LessThan(right, left, budget);
    default: {
      ASSIGN_OR_RETURN(const bool less, op == Op::kLe ? LessThan(left, right, budget)
                                                      : LessThan(right, left, budget));
      if (less) return true;
      return Equals(left, right, budget);
    }
  }
}

Result<Value> Negate(const Value& operand) {
  if (const auto number = operand.AsInt()) return IntArithmetic(Op::kSub, 0, *number);
  if (const double* number = operand.As<double>()) return Value(-*number);
  if (const Undefined* undefined = operand.As<Undefined>()) return UndefinedError(*undefined);
  return MakeError("'-' does not apply to {}", operand.TypeName());
}

}  // namespace lapidary::jinja
