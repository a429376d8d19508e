// What shapes mean: the texts of strings, the members of objects and arrays, whether anything fits.
#include <algorithm>
#include <utility>

#include "grammar/schema_algebra.h"
#include "grammar/schema_parts.h"

namespace lapidary::grammar {
namespace {

using Type = JsonValue::Type;

constexpr size_t kMaxPatterns = 8;

}  // namespace

RegexId SchemaAlgebra::StringText(const Shape& shape) {
  if (shape.patterns.empty()) {
    return pool_.Repeat(plain_character_, shape.min_length, shape.max_length);
  }
  std::vector<RegexId> parts = shape.patterns;
  parts.push_back(pool_.Repeat(pattern_character_, shape.min_length, shape.max_length));
  return pool_.And(parts);
}

SchemaId SchemaAlgebra::ElementSchema(const Shape& shape, size_t index) {
  std::vector<SchemaId> parts;
  for (const auto& clause : shape.array_clauses) {
    parts.push_back(index < clause->prefix.size() ? clause->prefix[index] : clause->rest);
  }
  return All(std::move(parts));
}

SchemaId SchemaAlgebra::PropertySchema(const Shape& shape, const std::string& name) {
  const std::string key = Encoded(name);
  for (RegexId pattern : shape.key_patterns) {
    if (!pool_.Matches(pattern, key)) return kNoValue;
  }
  std::vector<SchemaId> parts;
  for (const auto& clause : shape.object_clauses) {
    bool is_known = false;
    if (const auto found = clause->by_name.find(name); found != clause->by_name.end()) {
      parts.push_back(found->second);
      is_known = true;
    }
    for (const auto& [pattern, schema] : clause->patterns) {
      if (!pool_.Matches(pattern, key)) continue;
      parts.push_back(schema);
      is_known = true;
    }
    if (!is_known) parts.push_back(clause->additional);
  }
  return All(std::move(parts));
}

Result<std::vector<ObjectProperty>> SchemaAlgebra::ListedProperties(const Shape& shape) {
  std::vector<ObjectProperty> listed;
  std::unordered_map<std::string, size_t> places;
  const auto list = [&](const std::string& name) {
    if (!places.emplace(name, listed.size()).second) return;
    listed.push_back({name, PropertySchema(shape, name), false});
  };
  for (const auto& clause : shape.object_clauses) {
    for (const auto& [name, schema] : clause->properties) list(name);
  }
  for (const std::string& name : shape.required) {
    list(name);
    listed[places[name]].required = true;
  }
  return listed;
}

Result<std::vector<std::pair<RegexId, SchemaId>>> SchemaAlgebra::OtherKeys(
    const Shape& shape, const std::vector<ObjectProperty>& listed) {
  std::vector<RegexId> patterns;
  for (const auto& clause : shape.object_clauses) {
    for (const auto& [pattern, schema] : clause->patterns) {
      if (std::ranges::find(patterns, pattern) == patterns.end()) patterns.push_back(pattern);
    }
  }
  if (patterns.size() > kMaxPatterns) {
    return MakeError("the schema's patternProperties have more than {} patterns in one object",
                     kMaxPatterns);
  }
  std::vector<RegexId> fixed = shape.key_patterns;
  if (!listed.empty()) {
    std::vector<RegexId> names;
    for (const ObjectProperty& property : listed) {
      names.push_back(pool_.Literal(Encoded(property.name)));
    }
    fixed.push_back(pool_.Not(pool_.Or(names)));
  }
  // Keys by the patterns they match; of n patterns there are 2^n cases, most of them empty.
  std::vector<std::pair<RegexId, SchemaId>> others;
  for (uint32_t matched = 0; matched < 1u << patterns.size(); ++matched) {
    std::vector<SchemaId> schemas;
    for (const auto& clause : shape.object_clauses) {
      bool is_known = false;
      for (const auto& [pattern, schema] : clause->patterns) {
        const size_t place = std::ranges::find(patterns, pattern) - patterns.begin();
        if ((matched >> place & 1) == 0) continue;
        schemas.push_back(schema);
        is_known = true;
      }
      if (!is_known) schemas.push_back(clause->additional);
    }
    const SchemaId schema = All(schemas);
    if (schema == kNoValue) continue;
    std::vector<RegexId> parts = fixed;
    for (size_t i = 0; i < patterns.size(); ++i) {
      parts.push_back((matched >> i & 1) != 0 ? patterns[i] : pool_.Not(patterns[i]));
    }
    const bool is_plain = parts.empty();
    parts.push_back(
        pool_.Repeat(is_plain ? plain_character_ : pattern_character_, 0, RegexPool::kUnbounded));
    const RegexId language = pool_.And(parts);
    if (!pool_.IsLive(language)) continue;
    others.emplace_back(language, schema);
  }
  return others;
}

Result<Shapes> SchemaAlgebra::ExpandAdditional(const Shape& shape) {
  Shapes work = {shape};
  work[0].has_additional.clear();
  for (const auto& clause : shape.has_additional) {
    Shapes next;
    for (const Shape& base : work) {
      ASSIGN_OR_RETURN(const std::vector<ObjectProperty> listed, ListedProperties(base));
      for (const ObjectProperty& property : listed) {
        const std::string key = Encoded(property.name);
        const bool is_known = clause->by_name.contains(property.name) ||
                              std::ranges::any_of(clause->patterns, [&](const auto& pattern) {
                                return pool_.Matches(pattern.first, key);
                              });
        if (is_known || property.schema == kNoValue) continue;
        Shape with = base;
        if (!property.required) with.required.push_back(property.name);
        next.push_back(std::move(with));
        if (property.required) break;  // always there: no other case is needed
      }
      // A key that nobody lists: told only where no pattern is involved, by counting members.
      if (clause->patterns.empty() && listed.empty() && base.object_clauses.empty()) {
        Shape with = base;
        auto names = std::make_shared<ObjectClause>();
        for (const auto& [name, schema] : clause->properties) {
          names->properties.emplace_back(name, kNoValue);
          names->by_name.emplace(name, kNoValue);
        }
        with.object_clauses.push_back(names);
        with.min_properties = std::max(with.min_properties, 1u);
        next.push_back(std::move(with));
      }
      if (next.size() > kMaxShapes) {
        return MakeError("the schema's combinations of closed objects have more than {} cases",
                         kMaxShapes);
      }
    }
    work = std::move(next);
  }
  return work;
}

Result<bool> SchemaAlgebra::IsEmpty(SchemaId id, int depth) {
  if (id == kAnyValue) return false;
  if (id == kNoValue) return true;
  if (depth <= 0 || in_progress_.contains(uint64_t{id} * 2)) return false;
  if (const auto found = empty_.find(id); found != empty_.end()) return found->second;
  ASSIGN_OR_RETURN(const Shapes shapes, NormalizeAt(id, 0));
  bool is_empty = true;
  for (const Shape& shape : shapes) {
    ASSIGN_OR_RETURN(const bool is_shape_empty, IsEmpty(shape, depth - 1));
    is_empty &= is_shape_empty;
    if (!is_empty) break;
  }
  if (!met_itself_ && is_exact_ && (is_empty || depth >= kEmptinessDepth - 1)) {
    empty_.emplace(id, is_empty);
  }
  return is_empty;
}

Result<bool> SchemaAlgebra::IsEmpty(const Shape& shape, int depth) {
  if (shape.values != nullptr) {
    for (const JsonValue* value : *shape.values) {
      ASSIGN_OR_RETURN(const bool is_valid, Validate(*value, shape));
      if (is_valid) return false;
    }
    return true;
  }
  switch (shape.type) {
    case Type::kNull:
    case Type::kBool:
      return false;
    case Type::kNumber: {
      const std::optional<RegexId> texts = NumberTexts(&pool_, shape.number);
      return texts && !pool_.IsLive(*texts);
    }
    case Type::kString:
      return !pool_.IsLive(StringText(shape));
    case Type::kArray:
      for (uint32_t i = 0; i < std::min(shape.min_items, 8u); ++i) {
        ASSIGN_OR_RETURN(const bool is_empty, IsEmpty(ElementSchema(shape, i), depth));
        if (is_empty) return true;
      }
      return false;
    case Type::kObject:
      if (depth <= 0) return false;
      for (const std::string& name : shape.required) {
        ASSIGN_OR_RETURN(const bool is_empty, IsEmpty(PropertySchema(shape, name), depth));
        if (is_empty) return true;
      }
      return false;
  }
  return false;
}

Result<bool> SchemaAlgebra::Validate(const JsonValue& value, const Shape& shape, int depth) {
  if (value.type != shape.type || depth > JsonValue::kMaxDepth) return false;
  if (shape.values != nullptr && std::ranges::none_of(*shape.values, [&](const JsonValue* other) {
        return Equal(value, *other);
      })) {
    return false;
  }
  const auto fits = [&](const JsonValue& inner, SchemaId id) -> Result<bool> {
    ASSIGN_OR_RETURN(const Shapes shapes, NormalizeAt(id, 0));
    for (const Shape& alternative : shapes) {
      ASSIGN_OR_RETURN(const bool is_valid, Validate(inner, alternative, depth + 1));
      if (is_valid) return true;
    }
    return false;
  };
  switch (value.type) {
    case Type::kNull:
    case Type::kBool:
      return true;
    case Type::kNumber:
      return shape.number.Has(Decimal::Parse(value.text));
    case Type::kString:
      return pool_.Matches(StringText(shape), Encoded(value.text));
    case Type::kArray: {
      const size_t length = value.items.size();
      if (length < shape.min_items || length > shape.max_items) return false;
      for (size_t i = 0; i < length; ++i) {
        ASSIGN_OR_RETURN(const bool is_valid, fits(value.items[i], ElementSchema(shape, i)));
        if (!is_valid) return false;
      }
      for (size_t i = 1; shape.has_distinct_items && i < length; ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (Equal(value.items[i], value.items[j])) return false;
        }
      }
      for (SchemaId contained : shape.contains) {
        bool has_one = false;
        for (const JsonValue& item : value.items) {
          ASSIGN_OR_RETURN(const bool is_one, fits(item, contained));
          has_one |= is_one;
        }
        if (!has_one) return false;
      }
      return true;
    }
    case Type::kObject: {
      const size_t size = value.members.size();
      if (size < shape.min_properties || size > shape.max_properties) return false;
      if (!shape.has_additional.empty()) {  // not told apart here
        is_exact_ = false;
        return false;
      }
      for (const std::string& name : shape.required) {
        if (value.Find(name) == nullptr) return false;
      }
      for (const auto& [name, member] : value.members) {
        ASSIGN_OR_RETURN(const bool is_valid, fits(member, PropertySchema(shape, name)));
        if (!is_valid) return false;
      }
      return true;
    }
  }
  return false;
}

}  // namespace lapidary::grammar
