// Methods of text, dicts, lists and `loop`.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/text_ops.h"
#include "text/unicode.h"

namespace lapidary::jinja {
namespace {

Result<const Text*> TextArgument(const Value* value, std::string_view what) {
  if (value != nullptr && value->AsText() != nullptr) return value->AsText();
  return MakeError("{} must be text, not {}", what, value ? value->TypeName() : "missing");
}

// Null for a missing argument or none.
Result<const Text*> OptionalText(const Value* value, std::string_view what) {
  if (value == nullptr || value->IsNone()) return static_cast<const Text*>(nullptr);
  return TextArgument(value, what);
}

Result<int64_t> OptionalCount(const Value* value) {
  if (value == nullptr) return int64_t{-1};
  const auto count = value->AsInt();
  if (!count) return MakeError("a count must be an integer, not {}", value->TypeName());
  return static_cast<int64_t>(std::clamp(*count, Int{-1}, Int{INT64_MAX}));
}

Result<Value> ToList(std::vector<Text> texts, Budget& budget) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (Text& text : texts) items.emplace_back(std::move(text));
  return MakeList(std::move(items), budget);
}

Result<Value> Wrap(Result<Text> text) {
  if (!text.ok()) return text.error();
  return Value(std::move(*text));
}

Result<bool> HasAffix(const Text& text, const Value& affix, bool at_start) {
  if (const Text* wanted = affix.AsText()) {
    return at_start ? text.view().starts_with(wanted->view())
                    : text.view().ends_with(wanted->view());
  }
  const List* options = affix.AsList();
  if (options == nullptr || options->kind != List::Kind::kTuple) {
    return MakeError("startswith and endswith take text or a tuple, not {}", affix.TypeName());
  }
  for (const Value& option : options->items) {
    if (option.AsText() == nullptr) return MakeError("a tuple of affixes must hold text only");
    ASSIGN_OR_RETURN(const bool found, HasAffix(text, option, at_start));
    if (found) return true;
  }
  return false;
}

// str.isdigit and friends, on ASCII classes and white space; empty text is never of a class.
bool AllOf(std::string_view view, bool (*predicate)(uint32_t)) {
  if (view.empty()) return false;
  for (size_t offset = 0; offset < view.size();) {
    const CodePoint next = DecodeAt(view, offset);
    if (!predicate(next.value)) return false;
    offset += next.num_bytes;
  }
  return true;
}

Result<Int> Find(const Text& text, const Text& wanted, bool from_right, Budget& budget) {
  RETURN_IF_ERROR(budget.Scan(text.size()));
  const size_t found =
      from_right ? text.view().rfind(wanted.view()) : text.view().find(wanted.view());
  if (found == std::string_view::npos) return Int{-1};
  return static_cast<Int>(CountCodePoints(text.view().substr(0, found)));
}

Result<Int> CountOccurrences(const Text& text, const Text& wanted, Budget& budget) {
  RETURN_IF_ERROR(budget.Scan(text.size()));
  if (wanted.empty()) return static_cast<Int>(CountCodePoints(text.view()) + 1);
  Int count = 0;
  for (size_t at = 0; (at = text.view().find(wanted.view(), at)) != std::string_view::npos;
       at += wanted.size()) {
    ++count;
  }
  return count;
}

Result<Value> StripMethod(const Text& text, Side side, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"chars"}));
  ASSIGN_OR_RETURN(const Text* chars, OptionalText(bound[0], "the set of characters"));
  return Wrap(Strip(text, chars, side, budget));
}

Result<Value> SplitMethod(const Text& text, bool from_right, const Arguments& arguments,
                          Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const Text* separator, OptionalText(bound[0], "a separator"));
  ASSIGN_OR_RETURN(const int64_t max_splits, OptionalCount(bound[1]));
  if (from_right && separator == nullptr && max_splits >= 0) {
    return MakeError("rsplit with a limit needs a separator");
  }
  if (!from_right || separator == nullptr) {
    ASSIGN_OR_RETURN(auto pieces, Split(text, separator, max_splits, budget));
    return ToList(std::move(pieces), budget);
  }
  ASSIGN_OR_RETURN(auto pieces, SplitFromRight(text, *separator, max_splits, budget));
  return ToList(std::move(pieces), budget);
}

Result<Value> CallTextMethod(const Text& text, std::string_view name, const Arguments& arguments,
                             Budget& budget) {
  if (name == "strip") return StripMethod(text, Side::kBoth, arguments, budget);
  if (name == "lstrip") return StripMethod(text, Side::kLeft, arguments, budget);
  if (name == "rstrip") return StripMethod(text, Side::kRight, arguments, budget);
  if (name == "split") return SplitMethod(text, /*from_right=*/false, arguments, budget);
  if (name == "rsplit") return SplitMethod(text, /*from_right=*/true, arguments, budget);
  if (name == "splitlines") {
    ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"keepends"}));
    ASSIGN_OR_RETURN(auto lines,
                     SplitLines(text, bound[0] != nullptr && bound[0]->Truthy(), budget));
    return ToList(std::move(lines), budget);
  }
  if (name == "startswith" || name == "endswith") {
    ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"affix"}));
    if (bound[0] == nullptr) return MakeError("{} needs an argument", name);
    ASSIGN_OR_RETURN(const bool found, HasAffix(text, *bound[0], name == "startswith"));
    return Value(found);
  }
  if (name == "replace") {
    ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"old", "new", "count"}));
    ASSIGN_OR_RETURN(const Text* old_text, TextArgument(bound[0], "what replace looks for"));
    ASSIGN_OR_RETURN(const Text* new_text, TextArgument(bound[1], "what replace puts in"));
    ASSIGN_OR_RETURN(const int64_t count, OptionalCount(bound[2]));
    return Wrap(Replace(text, *old_text, *new_text, count, budget));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "count") {
    ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"sub"}));
    ASSIGN_OR_RETURN(const Text* wanted, TextArgument(bound[0], "what to look for"));
    ASSIGN_OR_RETURN(const Int found,
                     name == "count" ? CountOccurrences(text, *wanted, budget)
                                     : Find(text, *wanted, /*from_right=*/name == "rfind", budget));
    if (name == "index" && found < 0) return MakeError("index found no such text");
    return Value(found);
  }
  if (name == "join") {
    ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"iterable"}));
    if (bound[0] == nullptr) return MakeError("join needs an argument");
    ASSIGN_OR_RETURN(const auto list, Iterate(*bound[0], budget));
    std::vector<Text> parts;
    for (const Value& item : list->items) {
      ASSIGN_OR_RETURN(const Text* part, TextArgument(&item, "what join puts together"));
      parts.push_back(*part);
    }
    return Wrap(Join(parts, text, budget));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"affix"}));
    ASSIGN_OR_RETURN(const Text* affix, TextArgument(bound[0], "an affix"));
    const bool at_start = name == "removeprefix";
    ASSIGN_OR_RETURN(const bool found, HasAffix(text, Value(*affix), at_start));
    return Value(found ? text.Substr(at_start ? affix->size() : 0, text.size() - affix->size())
                       : text);
  }
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({}));
  RETURN_IF_ERROR(budget.Scan(text.size()));
  if (name == "upper") return Wrap(ChangeCase(text, Case::kUpper, budget));
  if (name == "lower") return Wrap(ChangeCase(text, Case::kLower, budget));
  if (name == "title") return Wrap(TitleMethod(text, budget));
  if (name == "capitalize") return Wrap(Capitalize(text, budget));
  if (name == "isspace") return Value(AllOf(text.view(), IsSpace));
  if (name == "isascii") {
    return Value(text.empty() || AllOf(text.view(), [](uint32_t cp) { return cp < 0x80; }));
  }
  if (name.starts_with("is") && text.empty()) return Value(false);
  if ((name == "isdigit" || name == "isdecimal" || name == "isnumeric") &&
      AllOf(text.view(), [](uint32_t cp) { return cp < 0x80; })) {
    return Value(AllOf(text.view(), [](uint32_t cp) { return cp >= '0' && cp <= '9'; }));
  }
  return MakeError("the text method '{}' is not supported", name);
}

Result<Value> CallDictMethod(const Dict& dict, std::string_view name, const Arguments& arguments,
                             Budget& budget) {
  if (name == "get") {
    ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"key", "default"}));
    if (bound[0] == nullptr || !arguments.named.empty()) return MakeError("get needs a plain key");
    if (!bound[0]->Hashable()) {
      return MakeError("a {} cannot be a dict key", bound[0]->TypeName());
    }
    if (const Value* found = dict.Find(*bound[0])) return *found;
    return bound[1] != nullptr ? *bound[1] : Value(None{});
  }
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({}));
  if (name == "copy") return MakeDict(dict.entries(), budget);
  const bool keys = name == "keys", values = name == "values", items = name == "items";
  if (!keys && !values && !items) return MakeError("the dict method '{}' is not supported", name);
  RETURN_IF_ERROR(budget.Make(dict.entries().size() * sizeof(Value)));
  std::vector<Value> list;
  list.reserve(dict.entries().size());
  for (const auto& [key, value] : dict.entries()) {
    if (items) {
      ASSIGN_OR_RETURN(Value pair, MakeList({key, value}, budget, List::Kind::kTuple));
      list.push_back(std::move(pair));
    } else {
      list.push_back(keys ? key : value);
    }
  }
  return MakeList(std::move(list), budget,
                  keys     ? List::Kind::kKeys
                  : values ? List::Kind::kValues
                           : List::Kind::kItems);
}

Result<Value> CallListMethod(const List& list, std::string_view name, const Arguments& arguments,
                             Budget& budget) {
  if (name == "copy") {
    ASSIGN_OR_RETURN(const auto bound, arguments.Bind({}));
    return MakeList(list.items, budget);
  }
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"value"}));
  if (bound[0] == nullptr) return MakeError("{} needs an argument", name);
  Int count = 0;
  for (size_t item_idx = 0; item_idx < list.size(); ++item_idx) {
    ASSIGN_OR_RETURN(const bool equal, Equals(list.At(item_idx), *bound[0], budget));
    if (equal && name == "index") return Value(static_cast<Int>(item_idx));
    count += equal;
  }
  if (name == "count") return Value(count);
  return MakeError("index found no such item");
}

}  // namespace

Result<std::vector<const Value*>> Arguments::Bind(
    std::initializer_list<std::string_view> parameters) const {
  if (positional.size() > parameters.size()) {
    return MakeError("at most {} arguments are taken, {} were given", parameters.size(),
                     positional.size());
  }
  std::vector<const Value*> bound(parameters.size(), nullptr);
  for (size_t position = 0; position < positional.size(); ++position) {
    bound[position] = &positional[position];
  }
  for (const auto& [name, value] : named) {
    const auto* found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) return MakeError("there is no argument '{}'", name);
    const Value*& slot = bound[found - parameters.begin()];
    if (slot != nullptr) return MakeError("argument '{}' is given twice", name);
    slot = &value;
  }
  return bound;
}

Result<Value> CallMethod(const Value& receiver, std::string_view name, const Arguments& arguments,
                         Budget& budget) {
  if (const Text* text = receiver.AsText()) return CallTextMethod(*text, name, arguments, budget);
  if (const Dict* dict = receiver.AsDict()) return CallDictMethod(*dict, name, arguments, budget);
  if (const List* list = receiver.AsList()) return CallListMethod(*list, name, arguments, budget);
  const auto* loop = receiver.As<std::shared_ptr<const Loop>>();
  if (loop != nullptr && name == "cycle" && arguments.named.empty()) {
    if (arguments.positional.empty()) return MakeError("loop.cycle needs values");
    return arguments.positional[(*loop)->index % arguments.positional.size()];
  }
  return MakeError("the method '{}' is not supported", name);
}

}  // namespace lapidary::jinja
