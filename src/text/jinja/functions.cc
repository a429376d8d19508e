// Functions a template can call by name.
#include <ctime>

#include "text/jinja/builtins.h"
#include "text/unicode.h"

namespace lapidary::jinja {
namespace {

Result<Value> MakeRange(const Arguments& arguments, Budget& budget) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) {
    return MakeError("range takes one to three integers");
  }
  for (const Value& value : given) {
    if (const Undefined* undefined = value.As<Undefined>()) return UndefinedError(*undefined);
    if (!value.AsInt()) return MakeError("range takes integers, not {}", value.TypeName());
  }
  const Int start = given.size() == 1 ? 0 : *given[0].AsInt();
  const Int stop = *given[given.size() == 1 ? 0 : 1].AsInt();
  const Int step = given.size() == 3 ? *given[2].AsInt() : 1;
  if (step == 0) return MakeError("the step of a range cannot be zero");
  const auto outside = [](Int value) { return value > INT64_MAX || value < INT64_MIN; };
  if (outside(start) || outside(stop) || outside(step)) return MakeError("an integer is too large");
  const Int distance = step > 0 ? stop - start : start - stop;
  const Int pace = step > 0 ? step : -step;
  const Int count = distance <= 0 ? 0 : (distance - 1) / pace + 1;
  if (count > static_cast<Int>(budget.limits().range_length)) {
    return MakeError("a range has more than {} items", budget.limits().range_length);
  }
  RETURN_IF_ERROR(budget.Make(sizeof(List)));
  auto list = std::make_shared<List>();
  list->kind = List::Kind::kRange;
  list->range = {start, stop, step, static_cast<size_t>(count)};
  return Value(std::shared_ptr<const List>(std::move(list)));
}

Result<Value> MakeDictFromCall(const Arguments& arguments, Budget& budget) {
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) return MakeError("dict takes one plain argument at most");
  for (const Value& source : arguments.positional) {
    if (source.AsDict() == nullptr)
      return MakeError("dict takes a dict, not {}", source.TypeName());
    entries = source.AsDict()->entries();
  }
  for (const auto& [name, value] : arguments.named) {
    entries.emplace_back(Text(name, /*trusted=*/true), value);
  }
  return MakeDict(std::move(entries), budget);
}

// The date a template asks for; the format is the template's, the result depends on the clock.
Result<Value> FormatNow(const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"format"}));
  if (bound[0] == nullptr || bound[0]->AsText() == nullptr) {
    return MakeError("strftime_now takes a format");
  }
  const std::string format(bound[0]->AsText()->view());
  char buffer[256];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  const size_t length = std::strftime(buffer, sizeof(buffer), format.c_str(), &local);
  if (length == 0 && !format.empty())
    return MakeError("the date does not fit {} bytes", sizeof(buffer));
  RETURN_IF_ERROR(budget.Make(length));
  Text text = Text::Builder();
  bool trusted = true;
  bound[0]->AsText()->ForEachRun(
      [&](std::string_view, bool run_trusted) { trusted &= run_trusted; });
  text.Append({buffer, length}, trusted);
  return Value(std::move(text));
}

}  // namespace

Result<Int> LengthOf(const Value& value, Budget& budget) {
  if (value.IsUndefined()) return Int{0};
  if (const Text* text = value.AsText()) {
    RETURN_IF_ERROR(budget.Scan(text->size()));
    return static_cast<Int>(CountCodePoints(text->view()));
  }
  if (const Dict* dict = value.AsDict()) return static_cast<Int>(dict->entries().size());
  if (const List* list = value.AsList(); list != nullptr && list->HasLength()) {
    return static_cast<Int>(list->size());
  }
  return MakeError("a {} has no length", value.TypeName());
}

Result<Value> CallBuiltin(Builtin builtin, const Arguments& arguments, Budget& budget) {
  switch (builtin) {
    case Builtin::kRange:
      return MakeRange(arguments, budget);
    case Builtin::kDict:
      return MakeDictFromCall(arguments, budget);
    case Builtin::kStrftimeNow:
      return FormatNow(arguments, budget);
    case Builtin::kRaiseException: {
      ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"message"}));
      ASSIGN_OR_RETURN(const Text message, ToText(bound[0] ? *bound[0] : Value(), budget));
      return Error{std::string(message.view())};
    }
    case Builtin::kNamespace:
      break;  // The evaluator's, which owns namespaces.
  }
  return MakeError("the function is not available here");
}

}  // namespace lapidary::jinja
