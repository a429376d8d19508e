// Filters that take or yield sequences.
#include <algorithm>

#include "text/jinja/filter_table.h"
#include "text/jinja/text_ops.h"

namespace lapidary::jinja {
namespace {

// Text compares without case unless asked; other values as they are.
Result<Value> SortKey(const Value& value, bool case_sensitive, Budget& budget) {
  if (case_sensitive || value.AsText() == nullptr) return value;
  ASSIGN_OR_RETURN(Text lowered, ChangeCase(*value.AsText(), Case::kLower, budget));
  return Value(std::move(lowered));
}

struct Keyed {
  Value key;
  Value value;
};

// Stable, in either direction, as Python's sorted.
Status SortByKey(std::vector<Keyed>* items, bool reverse, Budget& budget) {
  Status status;
  std::stable_sort(items->begin(), items->end(), [&](const Keyed& left, const Keyed& right) {
    if (!status.ok()) return false;
    const auto less =
        reverse ? LessThan(right.key, left.key, budget) : LessThan(left.key, right.key, budget);
    if (!less.ok()) status = less.error();
    return less.ok() && *less;
  });
  return status;
}

Result<Value> TakeValues(std::vector<Keyed> items, Budget& budget) {
  std::vector<Value> values;
  values.reserve(items.size());
  for (Keyed& item : items) values.push_back(std::move(item.value));
  return MakeList(std::move(values), budget);
}

bool IsSet(const Value* argument) { return argument != nullptr && argument->Truthy(); }

Result<Value> DictSortFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"case_sensitive", "by", "reverse"}));
  if (const Undefined* undefined = operand.As<Undefined>()) return UndefinedError(*undefined);
  const Dict* dict = operand.AsDict();
  if (dict == nullptr) return MakeError("dictsort takes a dict, not {}", operand.TypeName());
  const Text* by = bound[1] != nullptr ? bound[1]->AsText() : nullptr;
  const bool by_value = by != nullptr && by->view() == "value";
  if (bound[1] != nullptr && !by_value && !(by != nullptr && by->view() == "key")) {
    return MakeError("dictsort sorts by 'key' or 'value'");
  }
  std::vector<Keyed> items;
  for (const auto& [key, value] : dict->entries()) {
    ASSIGN_OR_RETURN(Value sort_key, SortKey(by_value ? value : key, IsSet(bound[0]), budget));
    ASSIGN_OR_RETURN(Value pair, MakeList({key, value}, budget, List::Kind::kTuple));
    items.push_back({std::move(sort_key), std::move(pair)});
  }
  RETURN_IF_ERROR(SortByKey(&items, IsSet(bound[2]), budget));
  return TakeValues(std::move(items), budget);
}

Result<Value> Attribute(const Value& item, const Value* path, Budget& budget) {
  if (path == nullptr || path->IsNone()) return item;
  return GetPath(item, *path, budget);
}

Result<std::vector<Keyed>> WithKeys(const Value& operand, const Value* path, bool case_sensitive,
                                    Budget& budget) {
  ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
  RETURN_IF_ERROR(budget.Make(list->items.size() * sizeof(Keyed)));
  std::vector<Keyed> items;
  for (const Value& item : list->items) {
    ASSIGN_OR_RETURN(const Value attribute, Attribute(item, path, budget));
    ASSIGN_OR_RETURN(Value key, SortKey(attribute, case_sensitive, budget));
    items.push_back({std::move(key), item});
  }
  return items;
}

// Keys are lists, one item per comma-separated attribute, as in jinja2: equal ones need no order.
Result<std::vector<Keyed>> WithSortKeys(const Value& operand, const Value* path,
                                        bool case_sensitive, Budget& budget) {
  std::vector<Value> paths = {path != nullptr ? *path : Value(None{})};
  if (const Text* text = paths[0].AsText()) {
    const Text comma(",", /*trusted=*/true);
    ASSIGN_OR_RETURN(const auto parts, Split(*text, &comma, -1, budget));
    paths.assign(parts.begin(), parts.end());
  }
  ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
  std::vector<Keyed> items;
  for (const Value& item : list->items) {
    std::vector<Value> keys;
    for (const Value& part : paths) {
      ASSIGN_OR_RETURN(const Value attribute, Attribute(item, &part, budget));
      ASSIGN_OR_RETURN(Value key, SortKey(attribute, case_sensitive, budget));
      keys.push_back(std::move(key));
    }
    ASSIGN_OR_RETURN(Value key, MakeList(std::move(keys), budget));
    items.push_back({std::move(key), item});
  }
  return items;
}

Result<Value> SortFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"reverse", "case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(auto items, WithSortKeys(operand, bound[2], IsSet(bound[1]), budget));
  RETURN_IF_ERROR(SortByKey(&items, IsSet(bound[0]), budget));
  return TakeValues(std::move(items), budget);
}

Result<Value> UniqueFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const auto items, WithKeys(operand, bound[1], IsSet(bound[0]), budget));
  std::vector<Value> keys, values;
  for (const Keyed& item : items) {
    if (!item.key.Hashable()) {
      return MakeError("unique does not apply to items that are {}", item.key.TypeName());
    }
    bool seen = false;
    for (const Value& key : keys) {
      ASSIGN_OR_RETURN(seen, Equals(key, item.key, budget));
      if (seen) break;
    }
    if (seen) continue;
    keys.push_back(item.key);
    values.push_back(item.value);
  }
  return MakeList(std::move(values), budget, List::Kind::kGenerator);
}

template <bool kLargest>
Result<Value> ExtremeFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const auto items, WithKeys(operand, bound[1], IsSet(bound[0]), budget));
  const Keyed* best = nullptr;
  for (const Keyed& item : items) {
    bool better = best == nullptr;
    if (best != nullptr) {
      ASSIGN_OR_RETURN(better, kLargest ? LessThan(best->key, item.key, budget)
                                        : LessThan(item.key, best->key, budget));
    }
    if (better) best = &item;
  }
  return best != nullptr ? best->value : Value();
}

Result<Value> SumFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"attribute", "start"}));
  ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
  Value total = bound[1] != nullptr ? *bound[1] : Value(Int{0});
  if (total.AsText() != nullptr) return MakeError("sum does not join text");
  for (const Value& item : list->items) {
    ASSIGN_OR_RETURN(const Value summand, Attribute(item, bound[0], budget));
    ASSIGN_OR_RETURN(total, ApplyOperator(Op::kAdd, total, summand, budget));
  }
  return total;
}

Result<Value> ListFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  RETURN_IF_ERROR(arguments.Bind({}));
  ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
  return MakeList(list->items, budget);
}

Result<Value> ItemsFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  RETURN_IF_ERROR(arguments.Bind({}));
  if (operand.IsUndefined()) return MakeList({}, budget, List::Kind::kGenerator);
  if (operand.AsDict() == nullptr)
    return MakeError("items takes a dict, not {}", operand.TypeName());
  ASSIGN_OR_RETURN(const Value view, CallMethod(operand, "items", {}, budget));
  return MakeList(view.AsList()->items, budget, List::Kind::kGenerator);
}

Result<Value> JoinFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"d", "attribute"}));
  ASSIGN_OR_RETURN(const Text separator, ToText(bound[0] ? *bound[0] : Value(), budget));
  ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
  std::vector<Text> parts;
  for (const Value& item : list->items) {
    ASSIGN_OR_RETURN(const Value value, Attribute(item, bound[1], budget));
    ASSIGN_OR_RETURN(Text part, ToText(value, budget));
    parts.push_back(std::move(part));
  }
  ASSIGN_OR_RETURN(Text joined, Join(parts, separator, budget));
  return Value(std::move(joined));
}

template <bool kFirst>
Result<Value> EndFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  RETURN_IF_ERROR(arguments.Bind({}));
  if (!kFirst && operand.AsList() != nullptr && operand.AsList()->kind == List::Kind::kGenerator) {
    return MakeError("last does not apply to a lazy sequence; add `| list`");
  }
  ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
  if (list->items.empty()) return Value();
  return kFirst ? list->items.front() : list->items.back();
}

Result<Value> ReverseFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  RETURN_IF_ERROR(arguments.Bind({}));
  if (operand.AsText() != nullptr) {
    return Slice(operand, Value(None{}), Value(None{}), Value(Int{-1}), budget);
  }
  ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
  std::vector<Value> items(list->items.rbegin(), list->items.rend());
  return MakeList(std::move(items), budget, List::Kind::kGenerator);
}

Result<Value> MapFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  std::vector<Value> results;
  if (!operand.Truthy()) return MakeList({}, budget, List::Kind::kGenerator);
  if (arguments.positional.empty()) {
    ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"attribute", "default"}));
    if (bound[0] == nullptr) return MakeError("map needs a filter or an attribute");
    ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
    for (const Value& item : list->items) {
      ASSIGN_OR_RETURN(Value value, GetPath(item, *bound[0], budget));
      results.push_back(value.IsUndefined() && bound[1] != nullptr ? *bound[1] : std::move(value));
    }
  } else {
    const Text* name = arguments.positional[0].AsText();
    if (name == nullptr) return MakeError("map takes the name of a filter");
    const Arguments rest{
        std::vector<Value>(arguments.positional.begin() + 1, arguments.positional.end()),
        arguments.named};
    ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
    for (const Value& item : list->items) {
      RETURN_IF_ERROR(budget.Step());
      ASSIGN_OR_RETURN(Value value, ApplyFilter(name->view(), item, rest, budget));
      results.push_back(std::move(value));
    }
  }
  return MakeList(std::move(results), budget, List::Kind::kGenerator);
}

// select, reject, selectattr and rejectattr: kAttributes of the first argument, then an optional
// test.
template <bool kKeep, bool kByAttribute>
Result<Value> SelectFilter(const Value& operand, const Arguments& arguments, Budget& budget) {
  const auto& given = arguments.positional;
  if (!operand.Truthy()) return MakeList({}, budget, List::Kind::kGenerator);
  constexpr size_t kTestAt = kByAttribute ? 1 : 0;
  if (kByAttribute && given.empty())
    return MakeError("selectattr and rejectattr need an attribute");
  const bool has_test = given.size() > kTestAt;
  const Text* test = has_test ? given[kTestAt].AsText() : nullptr;
  if (has_test && test == nullptr) return MakeError("select and reject take the name of a test");
  Arguments rest;
  if (has_test)
    rest = {std::vector<Value>(given.begin() + kTestAt + 1, given.end()), arguments.named};
  ASSIGN_OR_RETURN(const auto list, Iterate(operand, budget));
  std::vector<Value> kept;
  for (const Value& item : list->items) {
    RETURN_IF_ERROR(budget.Step());
    ASSIGN_OR_RETURN(const Value subject,
                     Attribute(item, kByAttribute ? &given[0] : nullptr, budget));
    bool passes = subject.Truthy();
    if (has_test) {
      ASSIGN_OR_RETURN(passes, ApplyTest(test->view(), subject, rest, budget));
    }
    if (passes == kKeep) kept.push_back(item);
  }
  return MakeList(std::move(kept), budget, List::Kind::kGenerator);
}

}  // namespace

void AddSequenceFilters(FilterTable* table) {
  const FilterTable filters = {
      {"dictsort", DictSortFilter},
      {"sort", SortFilter},
      {"unique", UniqueFilter},
      {"min", ExtremeFilter</*kLargest=*/false>},
      {"max", ExtremeFilter</*kLargest=*/true>},
      {"sum", SumFilter},
      {"list", ListFilter},
      {"items", ItemsFilter},
      {"join", JoinFilter},
      {"first", EndFilter</*kFirst=*/true>},
      {"last", EndFilter</*kFirst=*/false>},
      {"reverse", ReverseFilter},
      {"map", MapFilter},
      {"select", SelectFilter</*kKeep=*/true, /*kByAttribute=*/false>},
      {"reject", SelectFilter</*kKeep=*/false, /*kByAttribute=*/false>},
      {"selectattr", SelectFilter</*kKeep=*/true, /*kByAttribute=*/true>},
      {"rejectattr", SelectFilter</*kKeep=*/false, /*kByAttribute=*/true>},
  };
  table->insert(filters.begin(), filters.end());
}

}  // namespace lapidary::jinja
