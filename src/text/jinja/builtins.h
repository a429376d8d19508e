// Operators, filters, tests and methods: what a template can do with values. Errors carry no line;
// the evaluator adds it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/value.h"

namespace lapidary::jinja {

// What a call passes, and how it meets a list of parameters.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // One entry per parameter, null where nothing was given. Surplus or unknown arguments are errors.
  Result<std::vector<const Value*>> Bind(std::initializer_list<std::string_view> parameters) const;
};

// operators.cc
Result<Value> ApplyOperator(Op op, const Value& left, const Value& right, Budget& budget);
Result<bool> Compare(Op op, const Value& left, const Value& right, Budget& budget);
Result<Value> Negate(const Value& operand);
Result<Text> Concat(const Text& left, const Text& right, Budget& budget);

// access.cc. `origin` is remembered by an undefined result, for messages; may be null.
Result<Value> GetAttr(const Value& object, std::string_view name, const Expr* origin,
                      Budget& budget);
Result<Value> GetItem(const Value& object, const Value& key, const Expr* origin, Budget& budget);
// Bounds may be undefined-state Values only through None: pass None for a missing one.
Result<Value> Slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                    Budget& budget);
// A path as filters take it: "a.b.0", or a number.
Result<Value> GetPath(const Value& object, const Value& path, Budget& budget);
bool HasMethod(const Value& receiver, std::string_view name);

// methods.cc
Result<Value> CallMethod(const Value& receiver, std::string_view name, const Arguments& arguments,
                         Budget& budget);

// filters.cc, sequence_filters.cc
bool IsFilter(std::string_view name);
Result<Value> ApplyFilter(std::string_view name, const Value& operand, const Arguments& arguments,
                          Budget& budget);

// tests.cc
bool IsTest(std::string_view name);
Result<bool> ApplyTest(std::string_view name, const Value& operand, const Arguments& arguments,
                       Budget& budget);

// functions.cc
Result<Value> CallBuiltin(Builtin builtin, const Arguments& arguments, Budget& budget);
Result<Int> LengthOf(const Value& value, Budget& budget);

}  // namespace lapidary::jinja
