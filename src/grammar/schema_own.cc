// What a schema object says by itself, without the keywords that combine others: the shapes that
// fit it, and those that violate it.
#include <algorithm>
#include <array>
#include <utility>

#include "grammar/regex_syntax.h"
#include "grammar/schema_algebra.h"
#include "grammar/schema_parts.h"
#include "grammar/string_formats.h"

namespace lapidary::grammar {
namespace {

using Type = JsonValue::Type;

// A count such as maxItems: saturates instead of overflowing.
Result<uint32_t> CountOf(const JsonValue& value, std::string_view keyword) {
  const Decimal number = value.IsNumber() ? Decimal::Parse(value.text) : Decimal{};
  if (!value.IsNumber() || number.negative || !number.IsInteger()) {
    return MakeError("the schema's {} must be a non-negative integer", keyword);
  }
  if (number.integer.size() > 9) return Shape::kUnlimited - 1;
  return static_cast<uint32_t>(std::stoul(number.integer));
}

Status ReadCount(const JsonValue& schema, std::string_view keyword, uint32_t* count) {
  if (const JsonValue* value = schema.Find(keyword)) {
    ASSIGN_OR_RETURN(*count, CountOf(*value, keyword));
  }
  return {};
}

// Shapes that have too few or too many: characters, items or properties.
void ViolateCount(const Shape& own, Type type, uint32_t Shape::*min, uint32_t Shape::*max,
                  Shapes* shapes) {
  if (own.*min > 0) {
    shapes->push_back(AnyOf(type));
    shapes->back().*max = own.*min - 1;
  }
  if (own.*max != Shape::kUnlimited) {
    shapes->push_back(AnyOf(type));
    shapes->back().*min = own.*max + 1;
  }
}

bool IsTrue(const JsonValue* value) {
  return value != nullptr && value->IsBool() && value->boolean;
}

}  // namespace

Status SchemaAlgebra::CheckSupported(const JsonValue& schema) {
  for (std::string_view keyword : {"unevaluatedProperties", "unevaluatedItems", "$dynamicRef",
                                   "minContains", "maxContains", "extends", "disallow"}) {
    if (schema.Find(keyword) != nullptr) return Unsupported(keyword);
  }
  return {};
}

Status SchemaAlgebra::OwnNumber(const JsonValue& schema, Shape* shape) {
  for (const bool is_min : {true, false}) {
    const char* plain = is_min ? "minimum" : "maximum";
    const char* exclusive = is_min ? "exclusiveMinimum" : "exclusiveMaximum";
    const JsonValue* exclusive_value = schema.Find(exclusive);
    const auto tighten = [&](const NumberBound& bound) {
      is_min ? TightenMin(&shape->number.min, bound) : TightenMax(&shape->number.max, bound);
    };
    if (const JsonValue* value = schema.Find(plain)) {
      if (!value->IsNumber()) return MakeError("the schema's {} must be a number", plain);
      tighten({Decimal::Parse(value->text), IsTrue(exclusive_value)});
    }
    if (exclusive_value != nullptr && exclusive_value->IsNumber()) {
      tighten({Decimal::Parse(exclusive_value->text), true});
    }
  }
  if (const JsonValue* value = schema.Find("multipleOf")) {
    if (!value->IsNumber()) return MakeError("the schema's multipleOf must be a number");
    shape->number.multiples_of.push_back(Decimal::Parse(value->text));
    if (!NumberTexts(&pool_, {.multiples_of = shape->number.multiples_of})) {
      return MakeError("the schema's multipleOf {} is not supported", value->text);
    }
  }
  return {};
}

Status SchemaAlgebra::OwnString(const JsonValue& schema, Shape* shape) {
  RETURN_IF_ERROR(ReadCount(schema, "minLength", &shape->min_length));
  RETURN_IF_ERROR(ReadCount(schema, "maxLength", &shape->max_length));
  if (const JsonValue* pattern = schema.Find("pattern")) {
    if (!pattern->IsString()) return MakeError("the schema's pattern must be a string");
    ASSIGN_OR_RETURN(const RegexId regex, KeyPattern(pattern->text));
    shape->patterns.push_back(regex);
  }
  if (const JsonValue* format = schema.Find("format"); format != nullptr && format->IsString()) {
    if (const auto pattern = FormatPattern(format->text)) {
      RegexId& regex = regexes_[std::string("format ") + format->text];
      if (regex == RegexPool::kNothing) {
        ASSIGN_OR_RETURN(regex, ParseRegex(&pool_, *pattern, RegexScope::kWhole, encoding_));
      }
      shape->patterns.push_back(regex);
    } else if (IsUnsupportedFormat(format->text)) {
      return MakeError("the schema's format \"{}\" is not supported", format->text);
    }
  }
  return {};
}

Status SchemaAlgebra::OwnArray(const JsonValue& schema, Shape* shape) {
  RETURN_IF_ERROR(ReadCount(schema, "minItems", &shape->min_items));
  RETURN_IF_ERROR(ReadCount(schema, "maxItems", &shape->max_items));
  ArrayClause clause;
  const JsonValue* items = schema.Find("items");
  const JsonValue* prefix = schema.Find("prefixItems");
  const JsonValue* rest = items;
  if (items != nullptr && items->IsArray()) {  // before 2020-12
    prefix = items;
    rest = schema.Find("additionalItems");
  }
  if (prefix != nullptr) {
    ASSIGN_OR_RETURN(clause.prefix, Places(*prefix, "prefixItems"));
  }
  if (rest != nullptr) {
    ASSIGN_OR_RETURN(clause.rest, Place(*rest));
  }
  if (!clause.prefix.empty() || clause.rest != kAnyValue) {
    shape->array_clauses.push_back(std::make_shared<ArrayClause>(std::move(clause)));
  }
  if (const JsonValue* contains = schema.Find("contains")) {
    ASSIGN_OR_RETURN(const SchemaId place, Place(*contains));
    shape->contains.push_back(place);
  }
  shape->has_distinct_items = IsTrue(schema.Find("uniqueItems"));
  return {};
}

Result<RegexId> SchemaAlgebra::KeyPattern(const std::string& pattern) {
  RegexId& regex = regexes_["pattern " + pattern];
  if (regex == RegexPool::kNothing) {
    ASSIGN_OR_RETURN(regex, ParseRegex(&pool_, pattern, RegexScope::kSearch, encoding_));
  }
  return regex;
}

Result<std::shared_ptr<ObjectClause>> SchemaAlgebra::ClauseOf(const JsonValue& schema) {
  auto clause = std::make_shared<ObjectClause>();
  if (const JsonValue* properties = schema.Find("properties")) {
    if (!properties->IsObject()) return MakeError("the schema's properties must be an object");
    for (const auto& [name, property] : properties->members) {
      ASSIGN_OR_RETURN(const SchemaId place, Place(property));
      clause->properties.emplace_back(name, place);
      clause->by_name.emplace(name, place);
    }
  }
  if (const JsonValue* patterns = schema.Find("patternProperties")) {
    if (!patterns->IsObject()) return MakeError("the schema's patternProperties must be an object");
    for (const auto& [pattern, property] : patterns->members) {
      ASSIGN_OR_RETURN(const RegexId regex, KeyPattern(pattern));
      ASSIGN_OR_RETURN(const SchemaId place, Place(property));
      clause->patterns.emplace_back(regex, place);
    }
  }
  if (const JsonValue* additional = schema.Find("additionalProperties")) {
    ASSIGN_OR_RETURN(clause->additional, Place(*additional));
  }
  return clause;
}

Result<RegexId> SchemaAlgebra::KeyLanguage(const JsonValue& names) {
  ASSIGN_OR_RETURN(const SchemaId place, Place(names));
  ASSIGN_OR_RETURN(const Shapes shapes, Normalize(place));
  std::vector<RegexId> languages;
  for (const Shape& shape : shapes) {
    if (shape.type != Type::kString) continue;
    if (shape.values == nullptr) {
      languages.push_back(StringText(shape));
      continue;
    }
    for (const JsonValue* value : *shape.values) {
      ASSIGN_OR_RETURN(const bool is_valid, Validate(*value, shape));
      if (is_valid) languages.push_back(pool_.Literal(Encoded(value->text)));
    }
  }
  return pool_.Or(languages);
}

Status SchemaAlgebra::OwnObject(const JsonValue& schema, Shape* shape) {
  RETURN_IF_ERROR(ReadCount(schema, "minProperties", &shape->min_properties));
  RETURN_IF_ERROR(ReadCount(schema, "maxProperties", &shape->max_properties));
  ASSIGN_OR_RETURN(const std::shared_ptr<ObjectClause> clause, ClauseOf(schema));
  if (!clause->properties.empty() || !clause->patterns.empty() || clause->additional != kAnyValue) {
    shape->object_clauses.push_back(clause);
  }
  if (const JsonValue* required = schema.Find("required");
      required != nullptr && required->IsArray()) {
    for (const JsonValue& name : required->items) {
      if (!name.IsString()) return MakeError("the schema's required must be an array of strings");
      if (std::ranges::find(shape->required, name.text) == shape->required.end()) {
        shape->required.push_back(name.text);
      }
    }
  }
  if (const JsonValue* names = schema.Find("propertyNames")) {
    ASSIGN_OR_RETURN(const RegexId language, KeyLanguage(*names));
    shape->key_patterns.push_back(language);
  }
  return {};
}

Result<Shapes> SchemaAlgebra::Own(const JsonValue& schema) {
  RETURN_IF_ERROR(CheckSupported(schema));
  Shapes shapes;
  if (const JsonValue* type = schema.Find("type")) {
    std::vector<const JsonValue*> names;
    if (type->IsArray()) {
      for (const JsonValue& item : type->items) names.push_back(&item);
    } else {
      names.push_back(type);
    }
    bool has_number = false;
    for (const JsonValue* name : names) has_number |= name->text == "number";
    for (const JsonValue* name : names) {
      if (name->IsObject()) {  // draft 3: a schema among the types
        return MakeError("the schema's type must be a name or an array of names");
      }
      if (name->text == "null") {
        shapes.push_back(AnyOf(Type::kNull));
      } else if (name->text == "boolean") {
        shapes.push_back(AnyOf(Type::kBool));
      } else if (name->text == "number") {
        shapes.push_back(AnyOf(Type::kNumber));
      } else if (name->text == "integer") {
        if (has_number) continue;
        shapes.push_back(AnyOf(Type::kNumber));
        shapes.back().number.integer = true;
      } else if (name->text == "string") {
        shapes.push_back(AnyOf(Type::kString));
      } else if (name->text == "array") {
        shapes.push_back(AnyOf(Type::kArray));
      } else if (name->text == "object") {
        shapes.push_back(AnyOf(Type::kObject));
      } else if (name->text == "any") {
        shapes = AnyShapes();
      } else {
        return MakeError("the schema's type \"{}\" is not a JSON type", name->text);
      }
    }
  } else {
    shapes = AnyShapes();
  }
  for (const char* keyword : {"enum", "const"}) {
    const JsonValue* values = schema.Find(keyword);
    if (values == nullptr) continue;
    const bool is_enum = keyword[0] == 'e';
    if (is_enum && !values->IsArray()) return MakeError("the schema's enum must be an array");
    for (Shape& shape : shapes) {
      auto kept = std::make_shared<std::vector<const JsonValue*>>();
      const auto keep = [&](const JsonValue& value) {
        if (value.type != shape.type) return;
        if (shape.values != nullptr &&
            std::ranges::none_of(*shape.values,
                                 [&](const JsonValue* other) { return Equal(value, *other); })) {
          return;
        }
        kept->push_back(&value);
      };
      if (is_enum) {
        for (const JsonValue& value : values->items) keep(value);
      } else {
        keep(*values);
      }
      shape.values = kept;
    }
    std::erase_if(shapes, [](const Shape& shape) { return shape.values->empty(); });
  }
  for (Shape& shape : shapes) {
    switch (shape.type) {
      case Type::kNumber:
        RETURN_IF_ERROR(OwnNumber(schema, &shape));
        break;
      case Type::kString:
        RETURN_IF_ERROR(OwnString(schema, &shape));
        break;
      case Type::kArray:
        RETURN_IF_ERROR(OwnArray(schema, &shape));
        break;
      case Type::kObject:
        RETURN_IF_ERROR(OwnObject(schema, &shape));
        break;
      default:
        break;
    }
  }
  return shapes;
}

Status SchemaAlgebra::ViolateType(const JsonValue& schema, Shapes* shapes) {
  if (schema.Find("type") == nullptr) return {};
  JsonValue type_only;
  type_only.type = Type::kObject;
  type_only.members.emplace_back("type", *schema.Find("type"));
  ASSIGN_OR_RETURN(const Shapes of_type, Own(type_only));
  for (const Shape& shape : of_type) is_exact_ &= !shape.number.integer;
  for (Type type : kAllTypes) {
    if (std::ranges::none_of(of_type, [&](const Shape& shape) { return shape.type == type; })) {
      shapes->push_back(AnyOf(type));
    }
  }
  return {};
}

// What is none of the values.
void SchemaAlgebra::ViolateValues(const std::vector<const JsonValue*>& excluded, Shapes* shapes) {
  std::vector<RegexId> strings;
  std::vector<Decimal> numbers;
  std::array<bool, 6> seen = {};
  bool has_true = false;
  bool has_false = false;
  for (const JsonValue* value : excluded) {
    seen[static_cast<int>(value->type)] = true;
    if (value->IsString()) strings.push_back(pool_.Literal(Encoded(value->text)));
    if (value->IsNumber()) numbers.push_back(Decimal::Parse(value->text));
    has_true |= value->IsBool() && value->boolean;
    has_false |= value->IsBool() && !value->boolean;
  }
  for (Type type : kAllTypes) {
    Shape shape = AnyOf(type);
    if (type == Type::kString && seen[static_cast<int>(type)]) {
      shape.patterns.push_back(pool_.Not(pool_.Or(strings)));
      shapes->push_back(std::move(shape));
    } else if (type == Type::kBool && (has_true || has_false)) {
      static const JsonValue kTrueValue = {.type = Type::kBool, .boolean = true};
      static const JsonValue kFalseValue = {.type = Type::kBool};
      auto kept = std::make_shared<std::vector<const JsonValue*>>();
      if (!has_true) kept->push_back(&kTrueValue);
      if (!has_false) kept->push_back(&kFalseValue);
      shape.values = kept;
      if (!kept->empty()) shapes->push_back(std::move(shape));
    } else if (type == Type::kNumber && !numbers.empty()) {
      // The gaps between the numbers.
      std::ranges::sort(numbers, [](const Decimal& a, const Decimal& b) { return a < b; });
      for (size_t i = 0; i <= numbers.size(); ++i) {
        Shape gap = shape;
        if (i > 0) gap.number.min = NumberBound{numbers[i - 1], true};
        if (i < numbers.size()) gap.number.max = NumberBound{numbers[i], true};
        shapes->push_back(std::move(gap));
      }
    } else if (!seen[static_cast<int>(type)]) {
      shapes->push_back(std::move(shape));
    } else if (type == Type::kArray || type == Type::kObject) {
      is_exact_ = false;
    }
  }
}

Status SchemaAlgebra::ViolateNumber(const JsonValue& schema, Shapes* shapes) {
  Shape own = AnyOf(Type::kNumber);
  RETURN_IF_ERROR(OwnNumber(schema, &own));
  Shape shape = AnyOf(Type::kNumber);
  if (own.number.min) {
    shape.number.max = NumberBound{own.number.min->value, !own.number.min->exclusive};
    shapes->push_back(shape);
    shape.number.max.reset();
  }
  if (own.number.max) {
    shape.number.min = NumberBound{own.number.max->value, !own.number.max->exclusive};
    shapes->push_back(shape);
  }
  return {};
}

Status SchemaAlgebra::ViolateString(const JsonValue& schema, Shapes* shapes) {
  Shape own = AnyOf(Type::kString);
  RETURN_IF_ERROR(OwnString(schema, &own));
  ViolateCount(own, Type::kString, &Shape::min_length, &Shape::max_length, shapes);
  // Of a format only some strings are told apart: its negation stays out.
  if (schema.Find("pattern") != nullptr) {
    shapes->push_back(AnyOf(Type::kString));
    shapes->back().patterns.push_back(pool_.Not(own.patterns[0]));
  }
  return {};
}

Status SchemaAlgebra::ViolateArray(const JsonValue& schema, Shapes* shapes) {
  Shape own = AnyOf(Type::kArray);
  if (!IsTrue(schema.Find("uniqueItems"))) RETURN_IF_ERROR(OwnArray(schema, &own));
  ViolateCount(own, Type::kArray, &Shape::min_items, &Shape::max_items, shapes);
  for (const auto& clause : own.array_clauses) {
    for (size_t i = 0; i < clause->prefix.size(); ++i) {
      auto violated = std::make_shared<ArrayClause>();
      violated->prefix.resize(i, kAnyValue);
      violated->prefix.push_back(Not(clause->prefix[i]));
      Shape shape = AnyOf(Type::kArray);
      shape.min_items = static_cast<uint32_t>(i + 1);
      shape.array_clauses = {violated};
      shapes->push_back(shape);
    }
    if (clause->rest != kAnyValue && clause->prefix.empty()) {
      Shape shape = AnyOf(Type::kArray);
      shape.contains.push_back(Not(clause->rest));
      shapes->push_back(shape);
    } else if (clause->rest != kAnyValue) {
      is_exact_ = false;
    }
  }
  for (SchemaId contained : own.contains) {
    auto none = std::make_shared<ArrayClause>();
    none->rest = Not(contained);
    Shape shape = AnyOf(Type::kArray);
    shape.array_clauses = {none};
    shapes->push_back(shape);
  }
  return {};
}

Status SchemaAlgebra::ViolateObject(const JsonValue& schema, Shapes* shapes) {
  Shape own = AnyOf(Type::kObject);
  RETURN_IF_ERROR(OwnObject(schema, &own));
  for (const std::string& name : own.required) shapes->push_back(ObjectWithout(name));
  ViolateCount(own, Type::kObject, &Shape::min_properties, &Shape::max_properties, shapes);
  for (const auto& clause : own.object_clauses) {
    for (const auto& [name, property] : clause->properties) {
      if (property != kAnyValue) shapes->push_back(ObjectWith(name, Not(property)));
    }
    if (clause->additional == kNoValue) {
      shapes->push_back(AnyOf(Type::kObject));
      shapes->back().has_additional.push_back(clause);
    } else if (clause->additional != kAnyValue) {
      is_exact_ = false;
    }
  }
  return {};
}

// The union of what violates one keyword each. Parts that shapes cannot express are left out.
Result<Shapes> SchemaAlgebra::NegateOwn(const JsonValue& schema) {
  RETURN_IF_ERROR(CheckSupported(schema));
  for (const char* keyword :
       {"multipleOf", "format", "uniqueItems", "patternProperties", "propertyNames"}) {
    if (schema.Find(keyword) != nullptr) is_exact_ = false;
  }
  Shapes shapes;
  RETURN_IF_ERROR(ViolateType(schema, &shapes));
  if (const JsonValue* values = schema.Find("enum")) {
    std::vector<const JsonValue*> excluded;
    for (const JsonValue& value : values->items) excluded.push_back(&value);
    ViolateValues(excluded, &shapes);
  }
  if (const JsonValue* value = schema.Find("const")) ViolateValues({value}, &shapes);
  RETURN_IF_ERROR(ViolateNumber(schema, &shapes));
  RETURN_IF_ERROR(ViolateString(schema, &shapes));
  RETURN_IF_ERROR(ViolateArray(schema, &shapes));
  RETURN_IF_ERROR(ViolateObject(schema, &shapes));
  return shapes;
}

}  // namespace lapidary::grammar
