// Attributes, subscripts and slices: jinja2 tries both `x.a` and `x['a']` for either spelling.
#include <algorithm>
#include <charconv>

#include "text/jinja/builtins.h"
#include "text/jinja/text_ops.h"
#include "text/unicode.h"

namespace lapidary::jinja {
namespace {

// Python's methods that a sandboxed template can see. A dict key of the same name hides behind them
// for `x.items`, and is found first for `x['items']`.
constexpr std::string_view kTextMethods[] = {
    "capitalize", "casefold",    "center",     "count",        "encode",       "endswith",
    "expandtabs", "find",        "format",     "format_map",   "index",        "isalnum",
    "isalpha",    "isascii",     "isdecimal",  "isdigit",      "isidentifier", "islower",
    "isnumeric",  "isprintable", "isspace",    "istitle",      "isupper",      "join",
    "ljust",      "lower",       "lstrip",     "maketrans",    "partition",    "replace",
    "rfind",      "rindex",      "rjust",      "rpartition",   "rsplit",       "rstrip",
    "split",      "splitlines",  "startswith", "strip",        "swapcase",     "title",
    "translate",  "upper",       "zfill",      "removeprefix", "removesuffix"};
constexpr std::string_view kDictMethods[] = {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kLoopMethods[] = {"cycle", "changed"};

template <size_t kCount>
bool Includes(const std::string_view (&names)[kCount], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value LoopAttribute(const Loop& loop, std::string_view name, const Expr* origin) {
  const Int index = static_cast<Int>(loop.index);
  const Int length = static_cast<Int>(loop.items->size());
  if (name == "index0") return Value(index);
  if (name == "index") return Value(index + 1);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "revindex") return Value(length - index);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth0") return Value(Int{loop.depth - 1});
  if (name == "depth") return Value(Int{loop.depth});
  if (name == "previtem" && index > 0) return loop.items->At(loop.index - 1);
  if (name == "nextitem" && index + 1 < length) return loop.items->At(loop.index + 1);
  return Value(Undefined{origin});
}

// The attribute itself, without falling back to a key; nothing if there is none.
std::optional<Value> PlainAttribute(const Value& object, std::string_view name,
                                    const Expr* origin) {
  if (HasMethod(object, name)) {
    return Value(std::make_shared<const Method>(Method{object, std::string(name)}));
  }
  if (const auto* space = object.As<std::shared_ptr<Namespace>>()) {
    for (const auto& [key, value] : (*space)->attributes) {
      if (key == name) return value;
    }
  }
  if (const auto* loop = object.As<std::shared_ptr<const Loop>>()) {
    return LoopAttribute(**loop, name, origin);
  }
  return std::nullopt;
}

// Python's index rule: negative counts from the end; nothing when outside.
std::optional<size_t> ResolveIndex(Int index, size_t length) {
  if (index < 0) index += static_cast<Int>(length);
  if (index < 0 || index >= static_cast<Int>(length)) return std::nullopt;
  return static_cast<size_t>(index);
}

Result<std::optional<Value>> PlainItem(const Value& object, const Value& key, Budget& budget) {
  if (const Dict* dict = object.AsDict()) {
    const Value* found = dict->Find(key);
    return found ? std::optional<Value>(*found) : std::nullopt;
  }
  const auto index = key.AsInt();
  if (!index) return std::optional<Value>();
  if (const Text* text = object.AsText()) {
    RETURN_IF_ERROR(budget.Scan(text->size()));
    const auto resolved = ResolveIndex(*index, CountCodePoints(text->view()));
    if (!resolved) return std::optional<Value>();
    const size_t offset = OffsetOfCodePoint(text->view(), *resolved);
    return std::optional<Value>(text->Substr(offset, DecodeAt(text->view(), offset).num_bytes));
  }
  if (const List* list = object.AsList(); list != nullptr && list->HasIndex()) {
    const auto resolved = ResolveIndex(*index, list->size());
    if (resolved) return std::optional<Value>(list->At(*resolved));
  }
  return std::optional<Value>();
}

// The indexes Python's slice selects.
struct SliceRange {
  Int start;
  Int step;
  size_t count;
};

Result<SliceRange> ResolveSlice(const Value& start, const Value& stop, const Value& step,
                                size_t length) {
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->IsNone() && !bound->AsInt()) {
      return MakeError("slice bounds must be integers, not {}", bound->TypeName());
    }
  }
  const Int stride = step.AsInt().value_or(1);
  if (stride == 0) return MakeError("a slice step cannot be zero");
  const Int size = static_cast<Int>(length);
  const Int lowest = stride < 0 ? -1 : 0;
  const Int highest = stride < 0 ? size - 1 : size;
  const auto clamp = [&](const Value& bound, Int missing) {
    if (bound.IsNone()) return missing;
    const Int index = *bound.AsInt() < 0 ? *bound.AsInt() + size : *bound.AsInt();
    return std::clamp(index, lowest, highest);
  };
  const Int first = clamp(start, stride < 0 ? highest : lowest);
  const Int last = clamp(stop, stride < 0 ? lowest : highest);
  const Int distance = stride < 0 ? first - last : last - first;
  const Int pace = stride < 0 ? -stride : stride;
  return SliceRange{first, stride,
                    distance <= 0 ? 0 : static_cast<size_t>((distance - 1) / pace + 1)};
}

Result<Value> SliceText(const Text& text, const Value& start, const Value& stop, const Value& step,
                        Budget& budget) {
  RETURN_IF_ERROR(budget.Scan(text.size()));
  const std::string_view view = text.view();
  ASSIGN_OR_RETURN(const SliceRange range, ResolveSlice(start, stop, step, CountCodePoints(view)));
  if (range.count == 0) return Value(Text());
  if (range.step == 1) {
    const size_t begin = OffsetOfCodePoint(view, static_cast<size_t>(range.start));
    const size_t length = OffsetOfCodePoint(view.substr(begin), range.count);
    return Value(text.Substr(begin, length));
  }
  RETURN_IF_ERROR(budget.Make(text.size() * sizeof(size_t)));
  std::vector<size_t> offsets;
  for (size_t offset = 0; offset < view.size(); offset += DecodeAt(view, offset).num_bytes) {
    offsets.push_back(offset);
  }
  offsets.push_back(view.size());
  Text result = Text::Builder();
  for (size_t item_idx = 0; item_idx < range.count; ++item_idx) {
    const size_t index = static_cast<size_t>(range.start + range.step * static_cast<Int>(item_idx));
    result.Append(text.Substr(offsets[index], offsets[index + 1] - offsets[index]));
  }
  return Value(std::move(result));
}

}  // namespace

bool HasMethod(const Value& receiver, std::string_view name) {
  if (receiver.AsDict() != nullptr) return Includes(kDictMethods, name);
  if (receiver.AsText() != nullptr) return Includes(kTextMethods, name);
  if (const List* list = receiver.AsList()) {
    if (list->kind == List::Kind::kList) return Includes(kListMethods, name);
    return list->HasIndex() && Includes(kTupleMethods, name);
  }
  return receiver.Is<std::shared_ptr<const Loop>>() && Includes(kLoopMethods, name);
}

Result<Value> GetAttr(const Value& object, std::string_view name, const Expr* origin,
                      Budget& budget) {
  // The sandbox answers for names such as __class__ before the undefined value can object.
  const bool is_internal = name.starts_with("__") && name.ends_with("__");
  if (const Undefined* undefined = object.As<Undefined>(); undefined != nullptr && !is_internal) {
    return UndefinedError(*undefined);
  }
  if (!name.starts_with('_')) {
    if (auto attribute = PlainAttribute(object, name, origin)) return std::move(*attribute);
  }
  if (const Dict* dict = object.AsDict()) {
    if (const Value* found = dict->Find(name)) return *found;
  }
  RETURN_IF_ERROR(budget.Step());
  return Value(Undefined{origin});
}

Result<Value> GetItem(const Value& object, const Value& key, const Expr* origin, Budget& budget) {
  if (const Undefined* undefined = object.As<Undefined>()) return UndefinedError(*undefined);
  ASSIGN_OR_RETURN(std::optional<Value> item, PlainItem(object, key, budget));
  if (item) return std::move(*item);
  const Text* name = key.AsText();
  if (name != nullptr && !name->view().starts_with('_')) {
    if (auto attribute = PlainAttribute(object, name->view(), origin)) return std::move(*attribute);
  }
  return Value(Undefined{origin});
}

Result<Value> Slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                    Budget& budget) {
  if (const Undefined* undefined = object.As<Undefined>()) return UndefinedError(*undefined);
  if (const Text* text = object.AsText()) return SliceText(*text, start, stop, step, budget);
  const List* list = object.AsList();
  if (list == nullptr || !list->HasIndex()) {
    return MakeError("a {} cannot be sliced", object.TypeName());
  }
  ASSIGN_OR_RETURN(const SliceRange range, ResolveSlice(start, stop, step, list->size()));
  RETURN_IF_ERROR(budget.Make(range.count * sizeof(Value)));
  std::vector<Value> items;
  items.reserve(range.count);
  for (size_t item_idx = 0; item_idx < range.count; ++item_idx) {
    items.push_back(
        list->At(static_cast<size_t>(range.start + range.step * static_cast<Int>(item_idx))));
  }
  const bool is_tuple = list->kind == List::Kind::kTuple;
  return MakeList(std::move(items), budget, is_tuple ? List::Kind::kTuple : List::Kind::kList);
}

Result<Value> GetPath(const Value& object, const Value& path, Budget& budget) {
  const Text* text = path.AsText();
  if (text == nullptr) return GetItem(object, path, nullptr, budget);
  Value current = object;
  const Text dot(".", /*trusted=*/true);
  ASSIGN_OR_RETURN(const std::vector<Text> parts, Split(*text, &dot, -1, budget));
  for (const Text& part : parts) {
    const std::string_view digits = part.view();
    int64_t index = 0;
    const bool is_number = !digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) {
      return c >= '0' && c <= '9';
    }) && std::from_chars(digits.data(), digits.data() + digits.size(), index).ec == std::errc();
    ASSIGN_OR_RETURN(
        current, GetItem(current, is_number ? Value(Int{index}) : Value(part), nullptr, budget));
  }
  return current;
}

}  // namespace lapidary::jinja
