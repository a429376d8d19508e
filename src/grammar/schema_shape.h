// The normal form of a JSON Schema: alternatives, each about values of one type.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/decimal.h"
#include "grammar/json_value.h"
#include "grammar/regex_pool.h"

namespace lapidary::grammar {

// A schema of the algebra (schema_algebra.h): a place in the document, or a combination of others.
using SchemaId = uint32_t;
inline constexpr SchemaId kAnyValue = 0;
inline constexpr SchemaId kNoValue = 1;

// One schema object's say about members. A property that is neither listed nor matches a pattern is
// an additional one.
struct ObjectClause {
  std::vector<std::pair<std::string, SchemaId>> properties;
  std::unordered_map<std::string, SchemaId> by_name;
  std::vector<std::pair<RegexId, SchemaId>> patterns;
  SchemaId additional = kAnyValue;
};

// One schema object's say about elements.
struct ArrayClause {
  std::vector<SchemaId> prefix;
  SchemaId rest = kAnyValue;
};

// Values of one type that satisfy everything said here. Fields of other types stay unset.
struct Shape {
  static constexpr uint32_t kUnlimited = RegexPool::kUnbounded;

  JsonValue::Type type;
  // Only these, as far as they satisfy the rest.
  std::shared_ptr<const std::vector<const JsonValue*>> values;

  NumberRange number;

  std::vector<RegexId> patterns;  // all hold, for the characters as the text writes them
  uint32_t min_length = 0;
  uint32_t max_length = kUnlimited;

  std::vector<std::shared_ptr<const ArrayClause>> array_clauses;  // all hold
  std::vector<SchemaId> contains;                                 // for each, some element fits
  uint32_t min_items = 0;
  uint32_t max_items = kUnlimited;
  bool has_distinct_items = false;

  std::vector<std::shared_ptr<const ObjectClause>> object_clauses;  // all hold
  std::vector<std::string> required;
  std::vector<RegexId> key_patterns;  // all hold for every key
  // For each clause, some member is additional to it and its value is not of the clause's schema
  // (which is kNoValue or kAnyValue: only "is there one" can be told).
  std::vector<std::shared_ptr<const ObjectClause>> has_additional;
  uint32_t min_properties = 0;
  uint32_t max_properties = kUnlimited;
};

using Shapes = std::vector<Shape>;

}  // namespace lapidary::grammar
