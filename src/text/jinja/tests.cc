// The tests behind `is`.
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/unicode.h"

namespace lapidary::jinja {
namespace {

using TestFunction = Result<bool> (*)(const Value&, const Arguments&, Budget&);

// A test without arguments.
template <bool (*kPredicate)(const Value&)>
Result<bool> Plain(const Value& value, const Arguments& arguments, Budget&) {
  RETURN_IF_ERROR(arguments.Bind({}));
  return kPredicate(value);
}

template <Op kOp>
Result<bool> Comparing(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"other"}));
  if (bound[0] == nullptr) return MakeError("the test needs something to compare with");
  return Compare(kOp, value, *bound[0], budget);
}

bool IsDefined(const Value& value) { return !value.IsUndefined(); }
bool IsUndefined(const Value& value) { return value.IsUndefined(); }
bool IsNone(const Value& value) { return value.IsNone(); }
bool IsBoolean(const Value& value) { return value.Is<bool>(); }
bool IsTrue(const Value& value) { return value.Is<bool>() && value.Truthy(); }
bool IsFalse(const Value& value) { return value.Is<bool>() && !value.Truthy(); }
bool IsFloat(const Value& value) { return value.Is<double>(); }
bool IsString(const Value& value) { return value.AsText() != nullptr; }
bool IsMapping(const Value& value) { return value.AsDict() != nullptr; }
bool IsNumber(const Value& value) { return value.AsNumber().has_value(); }
bool IsInteger(const Value& value) { return value.Is<Int>(); }
bool IsSequence(const Value& value) {
  const List* list = value.AsList();
  return value.IsUndefined() || value.AsText() || value.AsDict() || (list && list->HasIndex());
}
bool IsIterable(const Value& value) {
  return IsSequence(value) || value.AsList() || value.Is<std::shared_ptr<const Loop>>();
}
bool IsCallable(const Value& value) {
  // Undefined and `loop` have a __call__ in jinja2.
  return value.IsUndefined() || value.Is<std::shared_ptr<const Loop>>() ||
         value.Is<const Stmt*>() || value.Is<Builtin>() ||
         value.Is<std::shared_ptr<const Method>>();
}

// str.isupper and str.islower: at least one cased character and none of the other case.
Result<bool> HasOnlyCase(const Value& value, bool upper, Budget& budget) {
  ASSIGN_OR_RETURN(const Text text, ToText(value, budget));
  RETURN_IF_ERROR(budget.Scan(text.size()));
  bool found = false;
  for (size_t offset = 0; offset < text.size();) {
    const CodePoint next = DecodeAt(text.view(), offset);
    offset += next.num_bytes;
    if (!IsCased(next.value)) continue;
    if (IsUppercase(next.value) != upper) return false;
    found = true;
  }
  return found;
}

template <bool kUpper>
Result<bool> CaseTest(const Value& value, const Arguments& arguments, Budget& budget) {
  RETURN_IF_ERROR(arguments.Bind({}));
  return HasOnlyCase(value, kUpper, budget);
}

Result<bool> Divisible(const Value& value, Int divisor, Int remainder, Budget& budget) {
  ASSIGN_OR_RETURN(const Value rest, ApplyOperator(Op::kMod, value, Value(divisor), budget));
  return Equals(rest, Value(remainder), budget);
}

template <int kRemainder>
Result<bool> Parity(const Value& value, const Arguments& arguments, Budget& budget) {
  RETURN_IF_ERROR(arguments.Bind({}));
  return Divisible(value, 2, kRemainder, budget);
}

Result<bool> DivisibleBy(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"num"}));
  if (bound[0] == nullptr || !bound[0]->AsInt()) return MakeError("divisibleby needs an integer");
  return Divisible(value, *bound[0]->AsInt(), 0, budget);
}

// `is` of Python: exact for none and booleans, identity for containers.
Result<bool> SameAs(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"other"}));
  if (bound[0] == nullptr) return MakeError("sameas needs something to compare with");
  if (value.state().index() != bound[0]->state().index()) return false;
  if (value.AsList() != nullptr) return value.AsList() == bound[0]->AsList();
  if (value.AsDict() != nullptr) return value.AsDict() == bound[0]->AsDict();
  return Equals(value, *bound[0], budget);
}

const std::unordered_map<std::string_view, TestFunction>& Tests() {
  static const auto& tests = *new std::unordered_map<std::string_view, TestFunction>{
      {"defined", Plain<IsDefined>},
      {"undefined", Plain<IsUndefined>},
      {"none", Plain<IsNone>},
      {"boolean", Plain<IsBoolean>},
      {"true", Plain<IsTrue>},
      {"false", Plain<IsFalse>},
      {"integer", Plain<IsInteger>},
      {"float", Plain<IsFloat>},
      {"number", Plain<IsNumber>},
      {"string", Plain<IsString>},
      {"mapping", Plain<IsMapping>},
      {"sequence", Plain<IsSequence>},
      {"iterable", Plain<IsIterable>},
      {"callable", Plain<IsCallable>},
      {"odd", Parity<1>},
      {"even", Parity<0>},
      {"divisibleby", DivisibleBy},
      {"upper", CaseTest<true>},
      {"lower", CaseTest<false>},
      {"sameas", SameAs},
      {"in", Comparing<Op::kIn>},
      {"eq", Comparing<Op::kEq>},
      {"equalto", Comparing<Op::kEq>},
      {"==", Comparing<Op::kEq>},
      {"ne", Comparing<Op::kNe>},
      {"!=", Comparing<Op::kNe>},
      {"lt", Comparing<Op::kLt>},
      {"lessthan", Comparing<Op::kLt>},
      {"<", Comparing<Op::kLt>},
      {"le", Comparing<Op::kLe>},
      {"<=", Comparing<Op::kLe>},
      {"gt", Comparing<Op::kGt>},
      {"greaterthan", Comparing<Op::kGt>},
      {">", Comparing<Op::kGt>},
      {"ge", Comparing<Op::kGe>},
      {">=", Comparing<Op::kGe>},
  };
  return tests;
}

}  // namespace

bool IsTest(std::string_view name) { return Tests().contains(name); }

Result<bool> ApplyTest(std::string_view name, const Value& operand, const Arguments& arguments,
                       Budget& budget) {
  const auto found = Tests().find(name);
  if (found == Tests().end()) return MakeError("the test '{}' is not supported", name);
  return found->second(operand, arguments, budget);
}

}  // namespace lapidary::jinja
