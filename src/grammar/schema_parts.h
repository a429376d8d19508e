// Small shapes and functions to combine them: what the parts of SchemaAlgebra share.
#pragma once

#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "grammar/json_value.h"
#include "grammar/schema_shape.h"

namespace lapidary::grammar {

inline constexpr std::array kAllTypes = {JsonValue::Type::kNull,   JsonValue::Type::kBool,
                                         JsonValue::Type::kNumber, JsonValue::Type::kString,
                                         JsonValue::Type::kArray,  JsonValue::Type::kObject};
inline constexpr int kEmptinessDepth = 4;
inline constexpr size_t kMaxShapes = 3000;

inline Shape AnyOf(JsonValue::Type type) {
  Shape shape;
  shape.type = type;
  return shape;
}

inline Shapes AnyShapes() {
  Shapes shapes;
  for (JsonValue::Type type : kAllTypes) shapes.push_back(AnyOf(type));
  return shapes;
}

inline Shapes AnyShapesBut(JsonValue::Type type) {
  Shapes shapes;
  for (const JsonValue::Type other : kAllTypes) {
    if (other != type) shapes.push_back(AnyOf(other));
  }
  return shapes;
}

inline void Append(Shapes* shapes, Shapes more) {
  shapes->insert(shapes->end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
}

inline Error Unsupported(std::string_view keyword) {
  return MakeError("the schema's keyword {} is not supported", keyword);
}

inline std::shared_ptr<const ObjectClause> OneProperty(const std::string& name, SchemaId schema) {
  auto clause = std::make_shared<ObjectClause>();
  clause->properties.emplace_back(name, schema);
  clause->by_name.emplace(name, schema);
  return clause;
}

inline Shape ObjectWithout(const std::string& name) {
  Shape shape = AnyOf(JsonValue::Type::kObject);
  shape.object_clauses.push_back(OneProperty(name, kNoValue));
  return shape;
}

inline Shape ObjectWith(const std::string& name, SchemaId schema) {
  Shape shape = AnyOf(JsonValue::Type::kObject);
  if (schema != kAnyValue) shape.object_clauses.push_back(OneProperty(name, schema));
  shape.required.push_back(name);
  return shape;
}

inline void TightenMin(std::optional<NumberBound>* min, const NumberBound& bound) {
  if (!*min || bound.value > (*min)->value || (bound.value == (*min)->value && bound.exclusive)) {
    *min = bound;
  }
}
inline void TightenMax(std::optional<NumberBound>* max, const NumberBound& bound) {
  if (!*max || bound.value < (*max)->value || (bound.value == (*max)->value && bound.exclusive)) {
    *max = bound;
  }
}

}  // namespace lapidary::grammar
