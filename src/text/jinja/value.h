// Values of the template language, with Python's semantics.
//
// Cheap to copy: text and containers are shared. Containers never change once built (jinja2's
// immutable sandbox), so values form no cycles; only a Namespace can be written to, and the
// evaluator empties all namespaces at the end of a rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/jinja/budget.h"
#include "text/jinja/text.h"

namespace lapidary::jinja {

struct Expr;
struct Stmt;
class Value;
struct List;
class Dict;

// Wide enough for any 64-bit number of the input, signed or not; arithmetic beyond is an error.
using Int = __int128;

struct Undefined {
  const Expr* origin = nullptr;  // The expression that yielded it, for messages; may be null.
};
struct None {};

// A variable set of attributes: namespace(a=1). Owned by the evaluator, see above.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

// The `loop` variable.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int depth = 1;
};

enum class Builtin { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

// A method of a value that has been looked up but not called, like `message.items`. (A dict without
// a key "items" yields this for d['items'] too.)
struct Method;

class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, Int, double, Text,
                               std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                               std::shared_ptr<Namespace>, std::shared_ptr<const Loop>, const Stmt*,
                               Builtin, std::shared_ptr<const Method>>;

  Value() = default;
  template <typename T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, Value>) Value(T&& value)
      : state_(std::forward<T>(value)) {}

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(state_);
  }
  template <typename T>
  const T* As() const {
    return std::get_if<T>(&state_);
  }

  bool IsUndefined() const { return Is<Undefined>(); }
  bool IsNone() const { return Is<None>(); }
  const Text* AsText() const { return As<Text>(); }
  const List* AsList() const;
  const Dict* AsDict() const;
  // bool, int: the numeric value. Nothing for others.
  std::optional<Int> AsInt() const;
  // bool, int, float.
  std::optional<double> AsNumber() const;

  bool Truthy() const;
  // Whether Python could look it up in a dict.
  bool Hashable() const;
  // Containers below this value, itself included; 0 for scalars.
  int depth() const;
  // Python's name of the type, for messages.
  std::string_view TypeName() const;
  const Variant& state() const { return state_; }

 private:
  Variant state_;
};

// Everything ordered: lists, tuples, ranges, and the results of lazy filters and dict views, which
// print, index and measure differently in Python.
struct List {
  enum class Kind { kList, kTuple, kRange, kGenerator, kKeys, kValues, kItems };

  std::vector<Value>
      items;  // Empty for a range; read through size() and At() unless it cannot be one.
  Kind kind = Kind::kList;
  int depth = 1;
  // A range stores no items: item i is start + i * step.
  struct Range {
    Int start = 0;
    Int stop = 0;
    Int step = 1;
    size_t length = 0;
  };
  Range range;

  size_t size() const { return kind == Kind::kRange ? range.length : items.size(); }
  Value At(size_t index) const;

  bool HasLength() const { return kind != Kind::kGenerator; }
  bool HasIndex() const {
    return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kRange;
  }
};

// Insertion ordered. Keys are text, numbers, booleans or none; 1, 1.0 and true are one key.
class Dict {
 public:
  // Later duplicates replace the value of the first. Keys must be hashable.
  static Result<std::shared_ptr<const Dict>> Make(std::vector<std::pair<Value, Value>> entries);

  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
  int depth() const { return depth_; }

 private:
  static std::optional<std::string> CanonicalKey(const Value& key);
  const Value* FindCanonical(const std::string& key) const;

  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string, size_t> index_;
  int depth_ = 1;
};

struct Method {
  Value receiver;
  std::string name;
};

// Builds a list after checking it against the budget and the nesting limit.
Result<Value> MakeList(std::vector<Value> items, Budget& budget,
                       List::Kind kind = List::Kind::kList);
Result<Value> MakeDict(std::vector<std::pair<Value, Value>> entries, Budget& budget);

// Input data: all text in it is untrusted.
Result<Value> FromJson(const nlohmann::ordered_json& json, Budget& budget);

// Python's == and <; errors where Python raises TypeError.
Result<bool> Equals(const Value& left, const Value& right, Budget& budget);
Result<bool> LessThan(const Value& left, const Value& right, Budget& budget);

// The items a `for` would visit; an error when the value is not iterable. Text by character. The
// result is never a range: use IterateLazily, and size() and At(), where a range should stay one.
Result<std::shared_ptr<const List>> Iterate(const Value& value, Budget& budget);
Result<std::shared_ptr<const List>> IterateLazily(const Value& value, Budget& budget);

// str(value) and repr(value).
Result<Text> ToText(const Value& value, Budget& budget);
Result<Text> ToRepr(const Value& value, Budget& budget);

struct JsonStyle {
  std::optional<Text> indent;  // One level; nothing for a single line.
  std::string_view item_separator = ", ";
  std::string_view key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};
// json.dumps(value).
Result<Text> ToJson(const Value& value, const JsonStyle& style, Budget& budget);

// The error jinja2 raises when an undefined value is used.
Error UndefinedError(const Undefined& undefined);

}  // namespace lapidary::jinja
