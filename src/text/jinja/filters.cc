// Filters on single values: text, numbers, JSON. Those on sequences are in sequence_filters.cc.
#include <cmath>
#include <cstdlib>

#include "text/jinja/filter_table.h"
#include "text/jinja/text_ops.h"

namespace lapidary::jinja {
namespace {

Result<Value> Wrap(Result<Text> text) {
  if (!text.ok()) return text.error();
  return Value(std::move(*text));
}

template <Case kCase>
Result<Value> CaseFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  RETURN_IF_ERROR(arguments.Bind({}));
  ASSIGN_OR_RETURN(const Text text, ToText(operand, budget));
  return Wrap(ChangeCase(text, kCase, budget));
}

template <Result<Text> (*kChange)(const Text&, Budget&)>
Result<Value> TextFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  RETURN_IF_ERROR(arguments.Bind({}));
  ASSIGN_OR_RETURN(const Text text, ToText(operand, budget));
  return Wrap(kChange(text, budget));
}

Result<Text> Unchanged(const Text& text, Budget&) { return text; }

Result<Value> TrimFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"chars"}));
  ASSIGN_OR_RETURN(const Text text, ToText(operand, budget));
  const Text* chars = bound[0] != nullptr ? bound[0]->AsText() : nullptr;
  if (bound[0] != nullptr && chars == nullptr && !bound[0]->IsNone()) {
    return MakeError("trim takes text, not {}", bound[0]->TypeName());
  }
  return Wrap(Strip(text, chars, Side::kBoth, budget));
}

Result<Value> DefaultFilter(const Value& operand, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"default_value", "boolean"}));
  const bool replace_false = bound[1] != nullptr && bound[1]->Truthy();
  if (!operand.IsUndefined() && !(replace_false && !operand.Truthy())) return operand;
  return bound[0] != nullptr ? *bound[0] : Value(Text());
}

Result<Value> ReplaceFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"old", "new", "count"}));
  if (bound[0] == nullptr || bound[1] == nullptr) return MakeError("replace needs two arguments");
  ASSIGN_OR_RETURN(const Text text, ToText(operand, budget));
  ASSIGN_OR_RETURN(const Text old_text, ToText(*bound[0], budget));
  ASSIGN_OR_RETURN(const Text new_text, ToText(*bound[1], budget));
  int64_t count = -1;
  if (bound[2] != nullptr && !bound[2]->IsNone()) {
    const auto given = bound[2]->AsInt();
    if (!given) return MakeError("the count of replace must be an integer");
    count = static_cast<int64_t>(std::clamp(*given, Int{-1}, Int{INT64_MAX}));
  }
  return Wrap(Replace(text, old_text, new_text, count, budget));
}

Result<Value> IndentFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"width", "first", "blank"}));
  if (operand.AsText() == nullptr)
    return MakeError("indent takes text, not {}", operand.TypeName());
  Text indent("    ", /*trusted=*/true);
  if (bound[0] != nullptr && bound[0]->AsText() != nullptr) {
    indent = *bound[0]->AsText();
  } else if (bound[0] != nullptr) {
    const auto width = bound[0]->AsInt();
    if (!width) return MakeError("the width of indent must be text or an integer");
    const Int bounded = std::clamp(*width, Int{0}, Int{INT64_MAX});
    ASSIGN_OR_RETURN(indent,
                     Repeat(Text(" ", /*trusted=*/true), static_cast<int64_t>(bounded), budget));
  }
  return Wrap(Indent(*operand.AsText(), indent, bound[1] != nullptr && bound[1]->Truthy(),
                     bound[2] != nullptr && bound[2]->Truthy(), budget));
}

Result<Value> LengthFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  RETURN_IF_ERROR(arguments.Bind({}));
  ASSIGN_OR_RETURN(const Int length, LengthOf(operand, budget));
  return Value(length);
}

// Python's float(text): nothing when the text is not a number.
std::optional<double> ParseFloat(const Text& text) {
  const std::string_view view = text.view();
  const size_t begin = SkipSpaces(view);
  const std::string digits(view.substr(begin, std::max(begin, EndWithoutSpaces(view)) - begin));
  if (digits.empty() || digits.find_first_of("xXpP(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (end != digits.c_str() + digits.size()) return std::nullopt;
  return number;
}

// Python's int(text) in base ten.
std::optional<Int> ParseInt(const Text& text) {
  std::string_view view = text.view();
  view = view.substr(SkipSpaces(view));
  view = view.substr(0, EndWithoutSpaces(view));
  const bool negative = view.starts_with('-');
  if (negative || view.starts_with('+')) view.remove_prefix(1);
  if (view.empty()) return std::nullopt;
  Int number = 0;
  bool after_digit = false;
  for (char c : view) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    if (c < '0' || c > '9') return std::nullopt;
    if (__builtin_mul_overflow(number, Int{10}, &number) ||
        __builtin_add_overflow(number, Int{c - '0'}, &number)) {
      return std::nullopt;
    }
    after_digit = true;
  }
  if (!after_digit) return std::nullopt;
  return negative ? -number : number;
}

Result<Value> IntFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"default"}));
  if (const Undefined* undefined = operand.As<Undefined>()) return UndefinedError(*undefined);
  if (const auto number = operand.AsInt()) return Value(*number);
  std::optional<double> number = operand.AsNumber();
  if (const Text* text = operand.AsText()) {
    RETURN_IF_ERROR(budget.Scan(text->size()));
    if (const auto parsed = ParseInt(*text)) return Value(*parsed);
    number = ParseFloat(*text);
  }
  if (operand.As<double>() != nullptr && std::isinf(*number)) {
    return MakeError("infinity has no integer value");
  }
  if (number && std::isfinite(*number) && std::fabs(*number) < 1e37) {
    return Value(static_cast<Int>(std::trunc(*number)));
  }
  return bound[0] != nullptr ? *bound[0] : Value(Int{0});
}

Result<Value> FloatFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"default"}));
  if (const Undefined* undefined = operand.As<Undefined>()) return UndefinedError(*undefined);
  std::optional<double> number = operand.AsNumber();
  if (const Text* text = operand.AsText()) {
    RETURN_IF_ERROR(budget.Scan(text->size()));
    number = ParseFloat(*text);
  }
  if (number) return Value(*number);
  return bound[0] != nullptr ? *bound[0] : Value(0.0);
}

Result<Value> AbsFilter(const Value& operand, const Arguments& arguments, Budget&) {
  RETURN_IF_ERROR(arguments.Bind({}));
  if (const Undefined* undefined = operand.As<Undefined>()) return UndefinedError(*undefined);
  if (const auto number = operand.AsInt()) {
    if (*number < 0) return Negate(operand);
    return Value(*number);
  }
  if (const double* number = operand.As<double>()) return Value(std::fabs(*number));
  return MakeError("abs takes a number, not {}", operand.TypeName());
}

Result<Value> RoundFilter(const Value& operand, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"precision", "method"}));
  if (!operand.AsNumber()) return MakeError("round takes a number, not {}", operand.TypeName());
  const auto precision = bound[0] != nullptr ? bound[0]->AsInt() : Int{0};
  if (!precision || *precision < 0 || *precision > 300) {
    return MakeError("the precision of round must be an integer from 0 to 300");
  }
  const Text* given = bound[1] != nullptr ? bound[1]->AsText() : nullptr;
  const std::string_view method = bound[1] == nullptr ? "common" : given ? given->view() : "";
  if (method == "common") {
    if (operand.AsInt()) return Value(*operand.AsInt());
    // Printing rounds the exact binary value, half to even, as Python does.
    const std::string text =
        fmt::format("{:.{}f}", *operand.AsNumber(), static_cast<int>(*precision));
    return Value(std::strtod(text.c_str(), nullptr));
  }
  if (method != "ceil" && method != "floor") {
    return MakeError("the method of round must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(*precision));
  const double scaled = *operand.AsNumber() * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// transformers' tojson: json.dumps with ensure_ascii off, and nothing escaped for HTML.
Result<Value> ToJsonFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound,
                   arguments.Bind({"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound[0] != nullptr && bound[0]->Truthy();
  style.sort_keys = bound[3] != nullptr && bound[3]->Truthy();
  if (bound[1] != nullptr && !bound[1]->IsNone()) {
    style.item_separator = ",";
    if (bound[1]->AsText() != nullptr) {
      style.indent = *bound[1]->AsText();
    } else if (const auto width = bound[1]->AsInt()) {
      const Int bounded = std::clamp(*width, Int{0}, Int{INT64_MAX});
      ASSIGN_OR_RETURN(style.indent,
                       Repeat(Text(" ", /*trusted=*/true), static_cast<int64_t>(bounded), budget));
    } else {
      return MakeError("the indent of tojson must be text or an integer");
    }
  }
  if (bound[2] != nullptr && !bound[2]->IsNone()) {
    const List* pair = bound[2]->AsList();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].AsText() == nullptr ||
        pair->items[1].AsText() == nullptr) {
      return MakeError("the separators of tojson must be two texts");
    }
    style.item_separator = pair->items[0].AsText()->view();
    style.key_separator = pair->items[1].AsText()->view();
  }
  return Wrap(ToJson(operand, style, budget));
}

const FilterTable& Filters() {
  static const FilterTable& filters = *[] {
    auto* table = new FilterTable{
        {"upper", CaseFilter<Case::kUpper>},
        {"lower", CaseFilter<Case::kLower>},
        {"title", TextFilter<TitleFilter>},
        {"capitalize", TextFilter<Capitalize>},
        {"string", TextFilter<Unchanged>},
        {"safe", TextFilter<Unchanged>},
        {"trim", TrimFilter},
        {"default", DefaultFilter},
        {"d", DefaultFilter},
        {"replace", ReplaceFilter},
        {"indent", IndentFilter},
        {"length", LengthFilter},
        {"count", LengthFilter},
        {"int", IntFilter},
        {"float", FloatFilter},
        {"abs", AbsFilter},
        {"round", RoundFilter},
        {"tojson", ToJsonFilter},
    };
    AddSequenceFilters(table);
    return table;
  }();
  return filters;
}

}  // namespace

bool IsFilter(std::string_view name) { return Filters().contains(name); }

Result<Value> ApplyFilter(std::string_view name, const Value& operand, const Arguments& arguments,
                          Budget& budget) {
  const auto found = Filters().find(name);
  if (found == Filters().end()) return MakeError("the filter '{}' is not supported", name);
  return found->second(operand, arguments, budget);
}

}  // namespace lapidary::jinja
