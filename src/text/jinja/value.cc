#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "text/float_repr.h"
#include "text/unicode.h"

namespace lapidary::jinja {
namespace {

Status CheckDepth(int depth, const Budget& budget) {
  if (depth <= budget.limits().value_depth) return {};
  return MakeError("values are nested more than {} levels deep", budget.limits().value_depth);
}

Result<Value> FromJsonAt(const nlohmann::ordered_json& json, int depth, Budget& budget) {
  RETURN_IF_ERROR(CheckDepth(depth, budget));
  RETURN_IF_ERROR(budget.Step());
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value(Int{json.get<int64_t>()});
    case nlohmann::ordered_json::value_t::number_unsigned:
      return Value(Int{json.get<uint64_t>()});
    case nlohmann::ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return Value(Text(json.get_ref<const std::string&>(), /*trusted=*/false));
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& element : json) {
        ASSIGN_OR_RETURN(Value item, FromJsonAt(element, depth + 1, budget));
        items.push_back(std::move(item));
      }
      return MakeList(std::move(items), budget);
    }
    case nlohmann::ordered_json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, element] : json.items()) {
        ASSIGN_OR_RETURN(Value item, FromJsonAt(element, depth + 1, budget));
        entries.emplace_back(Text(key, /*trusted=*/false), std::move(item));
      }
      return MakeDict(std::move(entries), budget);
    }
    default:
      return Value(None{});
  }
}

// Looks at element pairs until one differs; the caller compares lengths.
Result<size_t> FirstDifference(const List& left, const List& right, Budget& budget) {
  const size_t common = std::min(left.size(), right.size());
  for (size_t item_idx = 0; item_idx < common; ++item_idx) {
    ASSIGN_OR_RETURN(const bool equal, Equals(left.At(item_idx), right.At(item_idx), budget));
    if (!equal) return item_idx;
  }
  return common;
}

// Lists and tuples never equal each other; views and generators compare by identity.
bool ComparableSequences(const List& left, const List& right) {
  return left.kind == right.kind && left.HasIndex();
}

std::string TextKey(std::string_view text) {
  std::string key(1, 's');
  key.append(text);
  return key;
}

constexpr size_t kIndexFromSize = 8;  // Below, a linear search beats hashing.

}  // namespace

const List* Value::AsList() const {
  const auto* list = As<std::shared_ptr<const List>>();
  return list ? list->get() : nullptr;
}

const Dict* Value::AsDict() const {
  const auto* dict = As<std::shared_ptr<const Dict>>();
  return dict ? dict->get() : nullptr;
}

std::optional<Int> Value::AsInt() const {
  if (const bool* flag = As<bool>()) return Int{*flag};
  if (const Int* number = As<Int>()) return *number;
  return std::nullopt;
}

std::optional<double> Value::AsNumber() const {
  if (const auto number = AsInt()) return static_cast<double>(*number);
  if (const double* number = As<double>()) return *number;
  return std::nullopt;
}

bool Value::Truthy() const {
  if (IsUndefined() || IsNone()) return false;
  if (const auto number = AsNumber()) return *number != 0;
  if (const Text* text = AsText()) return !text->empty();
  if (const List* list = AsList()) return !list->HasLength() || list->size() > 0;
  if (const Dict* dict = AsDict()) return !dict->entries().empty();
  return true;
}

bool Value::Hashable() const {
  const List* list = AsList();
  return AsDict() == nullptr && (list == nullptr || list->kind != List::Kind::kList);
}

int Value::depth() const {
  if (const List* list = AsList()) return list->depth;
  if (const Dict* dict = AsDict()) return dict->depth();
  if (const auto* method = As<std::shared_ptr<const Method>>())
    return (*method)->receiver.depth() + 1;
  if (const auto* loop = As<std::shared_ptr<const Loop>>()) return (*loop)->items->depth + 1;
  return 0;
}

std::string_view Value::TypeName() const {
  static constexpr std::string_view kNames[] = {
      "Undefined", "NoneType",  "bool", "int",   "float",    "str",   "list",
      "dict",      "Namespace", "loop", "macro", "function", "method"};
  static_assert(std::size(kNames) == std::variant_size_v<Variant>);
  if (const List* list = AsList()) {
    static constexpr std::string_view kListNames[] = {
        "list", "tuple", "range", "generator", "dict_keys", "dict_values", "dict_items"};
    return kListNames[static_cast<int>(list->kind)];
  }
  return kNames[state_.index()];
}

std::optional<std::string> Dict::CanonicalKey(const Value& key) {
  if (const Text* text = key.AsText()) return TextKey(text->view());
  if (const auto number = key.AsInt()) return fmt::format("i{}", *number);
  if (const double* number = key.As<double>()) {
    const bool integral = std::floor(*number) == *number && std::fabs(*number) < 1e30;
    return integral ? fmt::format("i{}", static_cast<Int>(*number))
                    : fmt::format("f{}", FloatRepr(*number));
  }
  if (key.IsNone()) return "n";
  return std::nullopt;
}

Result<std::shared_ptr<const Dict>> Dict::Make(std::vector<std::pair<Value, Value>> entries) {
  auto dict = std::make_shared<Dict>();
  std::unordered_map<std::string, size_t> index;
  for (auto& [key, value] : entries) {
    const auto canonical = CanonicalKey(key);
    if (!canonical) return MakeError("a {} cannot be a dict key", key.TypeName());
    const auto [slot, is_new] = index.emplace(*canonical, dict->entries_.size());
    dict->depth_ = std::max(dict->depth_, value.depth() + 1);
    if (is_new) {
      dict->entries_.emplace_back(std::move(key), std::move(value));
    } else {
      dict->entries_[slot->second].second = std::move(value);
    }
  }
  if (dict->entries_.size() >= kIndexFromSize) dict->index_ = std::move(index);
  return std::shared_ptr<const Dict>(std::move(dict));
}

const Value* Dict::FindCanonical(const std::string& canonical) const {
  if (entries_.size() >= kIndexFromSize) {
    const auto slot = index_.find(canonical);
    return slot == index_.end() ? nullptr : &entries_[slot->second].second;
  }
  for (const auto& [key, value] : entries_) {
    if (CanonicalKey(key) == canonical) return &value;
  }
  return nullptr;
}

const Value* Dict::Find(std::string_view wanted) const {
  if (entries_.size() >= kIndexFromSize) return FindCanonical(TextKey(wanted));
  for (const auto& [key, value] : entries_) {
    const Text* text = key.AsText();
    if (text != nullptr && text->view() == wanted) return &value;
  }
  return nullptr;
}

const Value* Dict::Find(const Value& key) const {
  if (const Text* text = key.AsText()) return Find(text->view());
  const auto canonical = CanonicalKey(key);
  return canonical ? FindCanonical(*canonical) : nullptr;
}

Result<Value> MakeList(std::vector<Value> items, Budget& budget, List::Kind kind) {
  RETURN_IF_ERROR(budget.Make(items.size() * sizeof(Value) + sizeof(List)));
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  RETURN_IF_ERROR(CheckDepth(list->depth, budget));
  list->items = std::move(items);
  list->kind = kind;
  return Value(std::shared_ptr<const List>(std::move(list)));
}

Result<Value> MakeDict(std::vector<std::pair<Value, Value>> entries, Budget& budget) {
  RETURN_IF_ERROR(budget.Make(entries.size() * 3 * sizeof(Value) + sizeof(Dict)));
  ASSIGN_OR_RETURN(auto dict, Dict::Make(std::move(entries)));
  RETURN_IF_ERROR(CheckDepth(dict->depth(), budget));
  return Value(std::move(dict));
}

Result<Value> FromJson(const nlohmann::ordered_json& json, Budget& budget) {
  return FromJsonAt(json, 1, budget);
}

Result<bool> Equals(const Value& left, const Value& right, Budget& budget) {
  RETURN_IF_ERROR(budget.Step());
  const auto left_int = left.AsInt(), right_int = right.AsInt();
  if (left_int && right_int) return *left_int == *right_int;
  const auto left_number = left.AsNumber(), right_number = right.AsNumber();
  if (left_number && right_number) return *left_number == *right_number;
  if (left.state().index() != right.state().index()) return false;
  if (const Text* text = left.AsText()) {
    if (text->size() != right.AsText()->size()) return false;
    RETURN_IF_ERROR(budget.Scan(text->size()));
    return text->view() == right.AsText()->view();
  }
  if (const List* list = left.AsList()) {
    const List* other = right.AsList();
    if (list == other) return true;
    if (!ComparableSequences(*list, *other) || list->size() != other->size()) return false;
    ASSIGN_OR_RETURN(const size_t difference, FirstDifference(*list, *other, budget));
    return difference == list->size();
  }
  if (const Dict* dict = left.AsDict()) {
    const Dict* other = right.AsDict();
    if (dict->entries().size() != other->entries().size()) return false;
    for (const auto& [key, value] : dict->entries()) {
      const Value* other_value = other->Find(key);
      if (other_value == nullptr) return false;
      ASSIGN_OR_RETURN(const bool equal, Equals(value, *other_value, budget));
      if (!equal) return false;
    }
    return true;
  }
  if (left.IsUndefined() || left.IsNone()) return true;
  if (const auto* space = left.As<std::shared_ptr<Namespace>>()) {
    return *space == *right.As<std::shared_ptr<Namespace>>();
  }
  if (const auto* macro = left.As<const Stmt*>()) return *macro == *right.As<const Stmt*>();
  if (const auto* builtin = left.As<Builtin>()) return *builtin == *right.As<Builtin>();
  return false;
}

Result<bool> LessThan(const Value& left, const Value& right, Budget& budget) {
  RETURN_IF_ERROR(budget.Step());
  for (const Value* side : {&left, &right}) {
    if (const Undefined* undefined = side->As<Undefined>()) return UndefinedError(*undefined);
  }
  const auto left_int = left.AsInt(), right_int = right.AsInt();
  if (left_int && right_int) return *left_int < *right_int;
  const auto left_number = left.AsNumber(), right_number = right.AsNumber();
  if (left_number && right_number) return *left_number < *right_number;
  if (left.AsText() != nullptr && right.AsText() != nullptr) {
    RETURN_IF_ERROR(budget.Scan(std::min(left.AsText()->size(), right.AsText()->size())));
    return left.AsText()->view() < right.AsText()->view();  // UTF-8 sorts like code points.
  }
  const List* left_list = left.AsList();
  const List* right_list = right.AsList();
  if (left_list != nullptr && right_list != nullptr &&
      ComparableSequences(*left_list, *right_list) && left_list->kind != List::Kind::kRange) {
    ASSIGN_OR_RETURN(const size_t difference, FirstDifference(*left_list, *right_list, budget));
    if (difference == left_list->items.size() || difference == right_list->items.size()) {
      return left_list->items.size() < right_list->items.size();
    }
    return LessThan(left_list->items[difference], right_list->items[difference], budget);
  }
  return MakeError("cannot order {} and {}", left.TypeName(), right.TypeName());
}

Value List::At(size_t index) const {
  if (kind == Kind::kRange) return Value(range.start + static_cast<Int>(index) * range.step);
  return items[index];
}

Result<std::shared_ptr<const List>> Iterate(const Value& value, Budget& budget) {
  ASSIGN_OR_RETURN(auto list, IterateLazily(value, budget));
  if (list->kind != List::Kind::kRange) return list;
  RETURN_IF_ERROR(budget.Make(list->size() * sizeof(Value)));
  auto result = std::make_shared<List>();
  for (size_t item_idx = 0; item_idx < list->size(); ++item_idx) {
    result->items.push_back(list->At(item_idx));
  }
  return std::shared_ptr<const List>(std::move(result));
}

Result<std::shared_ptr<const List>> IterateLazily(const Value& value, Budget& budget) {
  if (const auto* list = value.As<std::shared_ptr<const List>>()) return *list;
  auto result = std::make_shared<List>();
  if (const Dict* dict = value.AsDict()) {
    RETURN_IF_ERROR(budget.Make(dict->entries().size() * sizeof(Value)));
    for (const auto& entry : dict->entries()) result->items.push_back(entry.first);
  } else if (const Text* text = value.AsText()) {
    RETURN_IF_ERROR(budget.Make(text->size() * sizeof(Value)));
    for (size_t offset = 0; offset < text->size();) {
      const size_t num_bytes = DecodeAt(text->view(), offset).num_bytes;
      result->items.emplace_back(text->Substr(offset, num_bytes));
      offset += num_bytes;
    }
  } else if (!value.IsUndefined()) {
    return MakeError("a {} cannot be iterated over", value.TypeName());
  }
  return std::shared_ptr<const List>(std::move(result));
}

}  // namespace lapidary::jinja
