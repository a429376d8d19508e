#include "grammar/schema_algebra.h"

#include <algorithm>
#include <array>
#include <utility>

#include "grammar/regex_syntax.h"
#include "grammar/string_formats.h"

namespace lapidary::grammar {
namespace {

using Type = JsonValue::Type;

constexpr int kMaxReferenceDepth = 100;
constexpr size_t kMaxShapes = 3000;
constexpr size_t kMaxSteps = 300'000;
constexpr size_t kMaxPatterns = 8;
constexpr int kEmptinessDepth = 4;

constexpr std::array kAllTypes = {Type::kNull,   Type::kBool,  Type::kNumber,
                                  Type::kString, Type::kArray, Type::kObject};

// Keywords that combine other schemas; the rest of a schema object is its own say.
constexpr std::array<std::string_view, 11> kCombining = {"$ref",
                                                         "$recursiveRef",
                                                         "allOf",
                                                         "anyOf",
                                                         "oneOf",
                                                         "not",
                                                         "if",
                                                         "dependencies",
                                                         "dependentRequired",
                                                         "dependentSchemas",
                                                         "extends"};

bool IsCombining(std::string_view keyword) {
  return std::ranges::find(kCombining, keyword) != kCombining.end();
}

Shape AnyOf(Type type) {
  Shape shape;
  shape.type = type;
  return shape;
}

Shapes AnyShapes() {
  Shapes shapes;
  for (Type type : kAllTypes) shapes.push_back(AnyOf(type));
  return shapes;
}

Shapes AnyShapesBut(Type type) {
  Shapes shapes;
  for (Type other : kAllTypes) {
    if (other != type) shapes.push_back(AnyOf(other));
  }
  return shapes;
}

void Append(Shapes* shapes, Shapes more) {
  shapes->insert(shapes->end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
}

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

Error Unsupported(std::string_view keyword) {
  return MakeError("the schema's keyword {} is not supported", keyword);
}

void TightenMin(std::optional<NumberBound>* min, const NumberBound& bound) {
  if (!*min || bound.value > (*min)->value || (bound.value == (*min)->value && bound.exclusive)) {
    *min = bound;
  }
}
void TightenMax(std::optional<NumberBound>* max, const NumberBound& bound) {
  if (!*max || bound.value < (*max)->value || (bound.value == (*max)->value && bound.exclusive)) {
    *max = bound;
  }
}

bool IsEmptyRange(const NumberRange& range) {
  if (!range.min || !range.max) return false;
  const auto order = range.min->value <=> range.max->value;
  return order > 0 || (order == 0 && (range.min->exclusive || range.max->exclusive));
}

bool IsTrue(const JsonValue* value) {
  return value != nullptr && value->IsBool() && value->boolean;
}

std::shared_ptr<const ObjectClause> OneProperty(const std::string& name, SchemaId schema) {
  auto clause = std::make_shared<ObjectClause>();
  clause->properties.emplace_back(name, schema);
  clause->by_name.emplace(name, schema);
  return clause;
}

Shape ObjectWithout(const std::string& name) {
  Shape shape = AnyOf(Type::kObject);
  shape.object_clauses.push_back(OneProperty(name, kNoValue));
  return shape;
}

Shape ObjectWith(const std::string& name, SchemaId schema) {
  Shape shape = AnyOf(Type::kObject);
  if (schema != kAnyValue) shape.object_clauses.push_back(OneProperty(name, schema));
  shape.required.push_back(name);
  return shape;
}

}  // namespace

SchemaAlgebra::SchemaAlgebra(RegexPool* pool, TextEncoding encoding, const JsonValue& document)
    : pool_(*pool), encoding_(encoding), document_(document) {
  pattern_character_ = AnyCharacter(pool, encoding);
  plain_character_ = pattern_character_;
  if (encoding == TextEncoding::kJsonString) {
    // Strings without a pattern may also spell any character as \uXXXX: one character each.
    const ByteSet hex =
        ByteSet::Range('0', '9') | ByteSet::Range('a', 'f') | ByteSet::Range('A', 'F');
    const auto digits = [&](uint32_t count) {
      return pool_.Repeat(pool_.Bytes(hex), count, count);
    };
    const ByteSet d = ByteSet::Of('d') | ByteSet::Of('D');
    const ByteSet low_second =
        ByteSet::Range('8', '9') | ByteSet::Range('a', 'b') | ByteSet::Range('A', 'B');
    const ByteSet high_second = ByteSet::Range('c', 'f') | ByteSet::Range('C', 'F');
    const RegexId not_surrogate =
        pool_.Or(pool_.Concat(pool_.Bytes(hex & ~d), digits(3)),
                 pool_.Concat(pool_.Bytes(d),
                              pool_.Concat(pool_.Bytes(ByteSet::Range('0', '7')), digits(2))));
    const RegexId high =
        pool_.Concat(pool_.Bytes(d), pool_.Concat(pool_.Bytes(low_second), digits(2)));
    const RegexId low =
        pool_.Concat(pool_.Bytes(d), pool_.Concat(pool_.Bytes(high_second), digits(2)));
    const RegexId mark = pool_.Literal("\\u");
    const RegexId pair = pool_.Concat(high, pool_.Concat(mark, low));
    plain_character_ = pool_.Or(std::array{pattern_character_, pool_.Literal("\\/"),
                                           pool_.Concat(mark, pool_.Or(not_surrogate, pair))});
  }
  CHECK_EQ(Intern({Expression::kAny}), kAnyValue);
  CHECK_EQ(Intern({Expression::kNone}), kNoValue);
}

std::string SchemaAlgebra::Encoded(std::string_view text) const {
  return encoding_ == TextEncoding::kJsonString ? EscapeJson(text) : std::string(text);
}

SchemaId SchemaAlgebra::Intern(Expression expression) {
  const auto [found, is_new] =
      expression_ids_.try_emplace(expression, static_cast<SchemaId>(expressions_.size()));
  if (is_new) expressions_.push_back(std::move(expression));
  return found->second;
}

Result<SchemaId> SchemaAlgebra::Root() { return Place(document_); }

Result<SchemaId> SchemaAlgebra::Place(const JsonValue& schema) {
  if (schema.IsBool()) return schema.boolean ? kAnyValue : kNoValue;
  if (!schema.IsObject()) return MakeError("a schema must be an object, true or false");
  if (schema.members.empty()) return kAnyValue;
  return Intern({Expression::kPlace, &schema});
}

SchemaId SchemaAlgebra::All(std::vector<SchemaId> parts) {
  std::vector<SchemaId> kept;
  for (SchemaId part : parts) {
    if (part == kNoValue) return kNoValue;
    if (part == kAnyValue || std::ranges::find(kept, part) != kept.end()) continue;
    if (expressions_[part].kind == Expression::kAll) {
      for (SchemaId inner : expressions_[part].parts) {
        if (std::ranges::find(kept, inner) == kept.end()) kept.push_back(inner);
      }
    } else {
      kept.push_back(part);
    }
  }
  if (kept.empty()) return kAnyValue;
  if (kept.size() == 1) return kept[0];
  return Intern({Expression::kAll, nullptr, std::move(kept)});
}

SchemaId SchemaAlgebra::Not(SchemaId id) {
  if (id == kAnyValue) return kNoValue;
  if (id == kNoValue) return kAnyValue;
  if (expressions_[id].kind == Expression::kNot) return expressions_[id].parts[0];
  return Intern({Expression::kNot, nullptr, {id}});
}

Result<std::vector<SchemaId>> SchemaAlgebra::Places(const JsonValue& list,
                                                    std::string_view keyword) {
  if (!list.IsArray()) return MakeError("the schema's {} must be an array of schemas", keyword);
  std::vector<SchemaId> places;
  for (const JsonValue& item : list.items) {
    ASSIGN_OR_RETURN(const SchemaId place, Place(item));
    places.push_back(place);
  }
  return places;
}

// ---- references ----

void SchemaAlgebra::IndexIds() {
  indexed_ids_ = true;
  std::vector<const JsonValue*> work = {&document_};
  while (!work.empty()) {
    const JsonValue* value = work.back();
    work.pop_back();
    for (const JsonValue& item : value->items) work.push_back(&item);
    for (const auto& [key, member] : value->members) {
      work.push_back(&member);
      if (!member.IsString()) continue;
      if (key == "$id" || key == "id") {
        std::string id = member.text;
        if (id.ends_with('#')) id.pop_back();
        ids_.emplace(id, value);
      } else if (key == "$anchor") {
        ids_.emplace("#" + member.text, value);
      }
    }
  }
}

Result<const JsonValue*> SchemaAlgebra::Resolve(const std::string& reference) {
  const size_t hash = reference.find('#');
  const std::string base = reference.substr(0, hash);
  std::string pointer = hash == std::string::npos ? "" : reference.substr(hash + 1);
  const JsonValue* value = &document_;
  if (!base.empty() || (!pointer.empty() && pointer[0] != '/')) {
    if (!indexed_ids_) IndexIds();
    const std::string& name = base.empty() ? reference : base;
    const auto found = ids_.find(name);
    if (found == ids_.end()) {
      return MakeError(
          "the schema's $ref \"{}\" leads outside the schema: put what it names under $defs",
          reference);
    }
    value = found->second;
    if (base.empty()) pointer.clear();
  }
  if (!pointer.empty() && pointer[0] != '/') {
    const auto found = ids_.find("#" + pointer);
    if (found == ids_.end()) return MakeError("the schema's $ref \"{}\" leads nowhere", reference);
    return found->second;
  }
  size_t at = 0;
  while (at < pointer.size()) {
    const size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    std::string key;
    for (size_t i = at + 1; i < end; ++i) {
      if (pointer[i] == '%' && i + 2 < end + 1 && isxdigit(pointer[i + 1]) &&
          isxdigit(pointer[i + 2])) {
        key += static_cast<char>(std::stoi(pointer.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        key += pointer[i];
      }
    }
    for (const auto& [escaped, plain] : {std::pair("~1", "/"), std::pair("~0", "~")}) {
      for (size_t i = key.find(escaped); i != std::string::npos; i = key.find(escaped, i + 1)) {
        key.replace(i, 2, plain);
      }
    }
    const JsonValue* next = nullptr;
    if (value->IsObject()) {
      next = value->Find(key);
    } else if (value->IsArray() && !key.empty() && key.size() < 8 &&
               key.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = std::stoul(key);
      if (index < value->items.size()) next = &value->items[index];
    }
    if (next == nullptr) return MakeError("the schema's $ref \"{}\" leads nowhere", reference);
    value = next;
    at = end;
  }
  return value;
}

// ---- a schema object's own keywords ----

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
  if (IsTrue(schema.Find("uniqueItems"))) {
    if (shape->max_items > 1) return Unsupported("uniqueItems");
  }
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

// The union of what violates one keyword each. Parts that shapes cannot express are left out.
Result<Shapes> SchemaAlgebra::NegateOwn(const JsonValue& schema) {
  RETURN_IF_ERROR(CheckSupported(schema));
  for (const char* keyword :
       {"multipleOf", "format", "uniqueItems", "patternProperties", "propertyNames"}) {
    if (schema.Find(keyword) != nullptr) is_exact_ = false;
  }
  Shapes shapes;
  if (schema.Find("type") != nullptr) {
    JsonValue type_only;
    type_only.type = Type::kObject;
    type_only.members.emplace_back("type", *schema.Find("type"));
    ASSIGN_OR_RETURN(const Shapes of_type, Own(type_only));
    for (const Shape& shape : of_type) is_exact_ &= !shape.number.integer;
    for (Type type : kAllTypes) {
      if (std::ranges::none_of(of_type, [&](const Shape& shape) { return shape.type == type; })) {
        shapes.push_back(AnyOf(type));
      }
    }
  }
  for (const char* keyword : {"enum", "const"}) {
    const JsonValue* values = schema.Find(keyword);
    if (values == nullptr) continue;
    std::vector<const JsonValue*> excluded;
    if (keyword[0] == 'c') {
      excluded.push_back(values);
    } else {
      for (const JsonValue& value : values->items) excluded.push_back(&value);
    }
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
        shapes.push_back(std::move(shape));
      } else if (type == Type::kBool && (has_true || has_false)) {
        static const JsonValue kTrueValue = {.type = Type::kBool, .boolean = true};
        static const JsonValue kFalseValue = {.type = Type::kBool};
        auto kept = std::make_shared<std::vector<const JsonValue*>>();
        if (!has_true) kept->push_back(&kTrueValue);
        if (!has_false) kept->push_back(&kFalseValue);
        shape.values = kept;
        if (!kept->empty()) shapes.push_back(std::move(shape));
      } else if (type == Type::kNumber && !numbers.empty()) {
        // The gaps between the numbers.
        std::ranges::sort(numbers, [](const Decimal& a, const Decimal& b) { return a < b; });
        for (size_t i = 0; i <= numbers.size(); ++i) {
          Shape gap = shape;
          if (i > 0) gap.number.min = NumberBound{numbers[i - 1], true};
          if (i < numbers.size()) gap.number.max = NumberBound{numbers[i], true};
          shapes.push_back(std::move(gap));
        }
      } else if (!seen[static_cast<int>(type)]) {
        shapes.push_back(std::move(shape));
      } else if (type == Type::kArray || type == Type::kObject) {
        is_exact_ = false;
      }
    }
  }
  {
    Shape own = AnyOf(Type::kNumber);
    RETURN_IF_ERROR(OwnNumber(schema, &own));
    Shape shape = AnyOf(Type::kNumber);
    if (own.number.min) {
      shape.number.max = NumberBound{own.number.min->value, !own.number.min->exclusive};
      shapes.push_back(shape);
      shape.number.max.reset();
    }
    if (own.number.max) {
      shape.number.min = NumberBound{own.number.max->value, !own.number.max->exclusive};
      shapes.push_back(shape);
    }
  }
  {
    Shape own = AnyOf(Type::kString);
    RETURN_IF_ERROR(OwnString(schema, &own));
    Shape shape = AnyOf(Type::kString);
    if (own.min_length > 0) {
      shape.max_length = own.min_length - 1;
      shapes.push_back(shape);
    }
    if (own.max_length != Shape::kUnlimited) {
      shape.max_length = Shape::kUnlimited;
      shape.min_length = own.max_length + 1;
      shapes.push_back(shape);
    }
    // Of a format only some strings are told apart: its negation stays out.
    if (schema.Find("pattern") != nullptr) {
      shape = AnyOf(Type::kString);
      shape.patterns.push_back(pool_.Not(own.patterns[0]));
      shapes.push_back(shape);
    }
  }
  {
    Shape own = AnyOf(Type::kArray);
    if (!IsTrue(schema.Find("uniqueItems"))) RETURN_IF_ERROR(OwnArray(schema, &own));
    Shape shape = AnyOf(Type::kArray);
    if (own.min_items > 0) {
      shape.max_items = own.min_items - 1;
      shapes.push_back(shape);
    }
    if (own.max_items != Shape::kUnlimited) {
      shape.max_items = Shape::kUnlimited;
      shape.min_items = own.max_items + 1;
      shapes.push_back(shape);
    }
    for (const auto& clause : own.array_clauses) {
      for (size_t i = 0; i < clause->prefix.size(); ++i) {
        auto violated = std::make_shared<ArrayClause>();
        violated->prefix.resize(i, kAnyValue);
        violated->prefix.push_back(Not(clause->prefix[i]));
        shape = AnyOf(Type::kArray);
        shape.min_items = static_cast<uint32_t>(i + 1);
        shape.array_clauses = {violated};
        shapes.push_back(shape);
      }
      if (clause->rest != kAnyValue && clause->prefix.empty()) {
        shape = AnyOf(Type::kArray);
        shape.contains.push_back(Not(clause->rest));
        shapes.push_back(shape);
      } else if (clause->rest != kAnyValue) {
        is_exact_ = false;
      }
    }
    for (SchemaId contained : own.contains) {
      auto none = std::make_shared<ArrayClause>();
      none->rest = Not(contained);
      shape = AnyOf(Type::kArray);
      shape.array_clauses = {none};
      shapes.push_back(shape);
    }
  }
  Shape own = AnyOf(Type::kObject);
  RETURN_IF_ERROR(OwnObject(schema, &own));
  for (const std::string& name : own.required) shapes.push_back(ObjectWithout(name));
  if (own.min_properties > 0) {
    shapes.push_back(AnyOf(Type::kObject));
    shapes.back().max_properties = own.min_properties - 1;
  }
  if (own.max_properties != Shape::kUnlimited) {
    shapes.push_back(AnyOf(Type::kObject));
    shapes.back().min_properties = own.max_properties + 1;
  }
  for (const auto& clause : own.object_clauses) {
    for (const auto& [name, property] : clause->properties) {
      if (property != kAnyValue) shapes.push_back(ObjectWith(name, Not(property)));
    }
    if (clause->additional == kNoValue) {
      shapes.push_back(AnyOf(Type::kObject));
      shapes.back().has_additional.push_back(clause);
    } else if (clause->additional != kAnyValue) {
      is_exact_ = false;
    }
  }
  return shapes;
}

// ---- and, or, not ----

std::optional<Shape> SchemaAlgebra::Intersect(const Shape& a, const Shape& b) {
  if (a.type != b.type) return std::nullopt;
  Shape both = a;
  if (b.values != nullptr) {
    if (a.values == nullptr) {
      both.values = b.values;
    } else {
      auto kept = std::make_shared<std::vector<const JsonValue*>>();
      for (const JsonValue* value : *a.values) {
        if (std::ranges::any_of(*b.values,
                                [&](const JsonValue* other) { return Equal(*value, *other); })) {
          kept->push_back(value);
        }
      }
      both.values = kept;
    }
    if (both.values->empty()) return std::nullopt;
  }
  const auto append = [](auto* list, const auto& more) {
    for (const auto& item : more) {
      if (std::ranges::find(*list, item) == list->end()) list->push_back(item);
    }
  };
  switch (a.type) {
    case Type::kNull:
    case Type::kBool:
      break;
    case Type::kNumber:
      both.number.integer |= b.number.integer;
      if (b.number.min) TightenMin(&both.number.min, *b.number.min);
      if (b.number.max) TightenMax(&both.number.max, *b.number.max);
      append(&both.number.multiples_of, b.number.multiples_of);
      if (IsEmptyRange(both.number)) return std::nullopt;
      break;
    case Type::kString:
      append(&both.patterns, b.patterns);
      both.min_length = std::max(a.min_length, b.min_length);
      both.max_length = std::min(a.max_length, b.max_length);
      if (both.min_length > both.max_length) return std::nullopt;
      break;
    case Type::kArray:
      append(&both.array_clauses, b.array_clauses);
      append(&both.contains, b.contains);
      both.min_items = std::max(a.min_items, b.min_items);
      both.max_items = std::min(a.max_items, b.max_items);
      if (both.min_items > both.max_items) return std::nullopt;
      break;
    case Type::kObject:
      append(&both.object_clauses, b.object_clauses);
      append(&both.required, b.required);
      append(&both.key_patterns, b.key_patterns);
      append(&both.has_additional, b.has_additional);
      both.min_properties = std::max(a.min_properties, b.min_properties);
      both.max_properties = std::min(a.max_properties, b.max_properties);
      if (both.min_properties > both.max_properties) return std::nullopt;
      if (!b.object_clauses.empty() || !b.required.empty()) {
        for (const std::string& name : both.required) {
          for (const auto& clause : both.object_clauses) {
            const auto found = clause->by_name.find(name);
            if (found != clause->by_name.end() && found->second == kNoValue) return std::nullopt;
          }
        }
      }
      break;
  }
  return both;
}

Result<Shapes> SchemaAlgebra::Intersect(const Shapes& a, const Shapes& b) {
  Shapes shapes;
  for (const Shape& x : a) {
    for (const Shape& y : b) {
      if (std::optional<Shape> both = Intersect(x, y)) shapes.push_back(std::move(*both));
    }
    if (shapes.size() > kMaxShapes || ++num_steps_ > kMaxSteps) {
      return MakeError("the schema's combinations (allOf, anyOf, oneOf, not) have too many cases");
    }
  }
  return shapes;
}

Result<Shapes> SchemaAlgebra::OneOf(const std::vector<SchemaId>& parts, int depth) {
  std::vector<Shapes> alternatives;
  std::vector<bool> are_exact;
  for (SchemaId part : parts) {
    const bool was_exact = std::exchange(is_exact_, true);
    ASSIGN_OR_RETURN(Shapes shapes, NormalizeAt(part, depth));
    alternatives.push_back(std::move(shapes));
    are_exact.push_back(is_exact_);
    is_exact_ &= was_exact;
  }
  Shapes result;
  for (size_t i = 0; i < parts.size(); ++i) {
    Shapes shapes = alternatives[i];
    for (size_t j = 0; j < parts.size() && !shapes.empty(); ++j) {
      if (i == j) continue;
      const bool was_exact = std::exchange(is_exact_, true);
      bool is_disjoint = are_exact[i] && are_exact[j];
      for (const Shape& a : alternatives[i]) {
        if (!is_disjoint) break;
        for (const Shape& b : alternatives[j]) {
          const std::optional<Shape> both = Intersect(a, b);
          if (!both) continue;
          ASSIGN_OR_RETURN(const bool is_empty, IsEmpty(*both, kEmptinessDepth));
          is_disjoint &= is_empty && is_exact_;
          if (!is_disjoint) break;
        }
      }
      is_exact_ = was_exact;
      if (is_disjoint) continue;
      ASSIGN_OR_RETURN(const Shapes others, NegateAt(parts[j], depth));
      ASSIGN_OR_RETURN(shapes, Intersect(shapes, others));
      Shapes kept;
      for (Shape& shape : shapes) {
        ASSIGN_OR_RETURN(const bool is_empty, IsEmpty(shape, 2));
        if (!is_empty) kept.push_back(std::move(shape));
      }
      shapes = std::move(kept);
    }
    Append(&result, std::move(shapes));
  }
  return result;
}

// {"a": ["b"], "c": schema}: objects with the key also satisfy what it asks for.
Result<Shapes> SchemaAlgebra::Dependencies(const JsonValue& dependencies, bool negated, int depth) {
  if (!dependencies.IsObject()) return MakeError("the schema's dependencies must be an object");
  Shapes result = negated ? Shapes() : AnyShapes();
  for (const auto& [name, dependency] : dependencies.members) {
    Shapes fits = AnyShapesBut(Type::kObject);
    fits.push_back(ObjectWithout(name));
    Shapes violates;
    if (dependency.IsArray() || dependency.IsString()) {
      Shape with = ObjectWith(name, kAnyValue);
      for (const JsonValue& other : dependency.items) {
        if (!other.IsString()) return MakeError("the schema's dependencies must be strings");
        Shape without = ObjectWith(name, kAnyValue);
        without.object_clauses.push_back(OneProperty(other.text, kNoValue));
        violates.push_back(std::move(without));
        with.required.push_back(other.text);
      }
      fits.push_back(std::move(with));
    } else {
      ASSIGN_OR_RETURN(const SchemaId place, Place(dependency));
      const Shapes with = {ObjectWith(name, kAnyValue)};
      ASSIGN_OR_RETURN(const Shapes shapes, NormalizeAt(place, depth));
      ASSIGN_OR_RETURN(Shapes both, Intersect(with, shapes));
      Append(&fits, std::move(both));
      if (negated) {
        ASSIGN_OR_RETURN(const Shapes not_shapes, NegateAt(place, depth));
        ASSIGN_OR_RETURN(violates, Intersect(with, not_shapes));
      }
    }
    if (negated) {
      Append(&result, std::move(violates));
    } else {
      ASSIGN_OR_RETURN(result, Intersect(result, fits));
    }
  }
  return result;
}

Result<Shapes> SchemaAlgebra::Keyword(std::string_view keyword, const JsonValue& schema,
                                      int depth) {
  const JsonValue& value = *schema.Find(keyword);
  if (keyword == "$ref" || keyword == "$recursiveRef") {
    if (!value.IsString()) return MakeError("the schema's $ref must be a string");
    ASSIGN_OR_RETURN(const JsonValue* target, Resolve(value.text));
    ASSIGN_OR_RETURN(const SchemaId place, Place(*target));
    return NormalizeAt(place, depth);
  }
  if (keyword == "allOf") {
    ASSIGN_OR_RETURN(const std::vector<SchemaId> parts, Places(value, keyword));
    Shapes shapes = AnyShapes();
    for (SchemaId part : parts) {
      ASSIGN_OR_RETURN(const Shapes more, NormalizeAt(part, depth));
      ASSIGN_OR_RETURN(shapes, Intersect(shapes, more));
    }
    return shapes;
  }
  if (keyword == "anyOf") {
    ASSIGN_OR_RETURN(const std::vector<SchemaId> parts, Places(value, keyword));
    Shapes shapes;
    for (SchemaId part : parts) {
      ASSIGN_OR_RETURN(Shapes more, NormalizeAt(part, depth));
      Append(&shapes, std::move(more));
    }
    return shapes;
  }
  if (keyword == "oneOf") {
    ASSIGN_OR_RETURN(const std::vector<SchemaId> parts, Places(value, keyword));
    return OneOf(parts, depth);
  }
  if (keyword == "not") {
    ASSIGN_OR_RETURN(const SchemaId part, Place(value));
    return NegateAt(part, depth);
  }
  if (keyword == "if") {
    ASSIGN_OR_RETURN(const SchemaId condition, Place(value));
    Shapes result;
    for (const bool holds : {true, false}) {
      ASSIGN_OR_RETURN(Shapes shapes,
                       holds ? NormalizeAt(condition, depth) : NegateAt(condition, depth));
      if (const JsonValue* then = schema.Find(holds ? "then" : "else")) {
        ASSIGN_OR_RETURN(const SchemaId place, Place(*then));
        ASSIGN_OR_RETURN(const Shapes more, NormalizeAt(place, depth));
        ASSIGN_OR_RETURN(shapes, Intersect(shapes, more));
      }
      Append(&result, std::move(shapes));
    }
    return result;
  }
  if (keyword == "extends") return Unsupported(keyword);
  return Dependencies(value, /*negated=*/false, depth);
}

Result<Shapes> SchemaAlgebra::NegateKeyword(std::string_view keyword, const JsonValue& schema,
                                            int depth) {
  const JsonValue& value = *schema.Find(keyword);
  if (keyword == "$ref" || keyword == "$recursiveRef") {
    if (!value.IsString()) return MakeError("the schema's $ref must be a string");
    ASSIGN_OR_RETURN(const JsonValue* target, Resolve(value.text));
    ASSIGN_OR_RETURN(const SchemaId place, Place(*target));
    return NegateAt(place, depth);
  }
  if (keyword == "allOf") {
    ASSIGN_OR_RETURN(const std::vector<SchemaId> parts, Places(value, keyword));
    Shapes shapes;
    for (SchemaId part : parts) {
      ASSIGN_OR_RETURN(Shapes more, NegateAt(part, depth));
      Append(&shapes, std::move(more));
    }
    return shapes;
  }
  if (keyword == "anyOf" || keyword == "oneOf") {
    ASSIGN_OR_RETURN(const std::vector<SchemaId> parts, Places(value, keyword));
    Shapes none = AnyShapes();
    for (SchemaId part : parts) {
      ASSIGN_OR_RETURN(const Shapes more, NegateAt(part, depth));
      ASSIGN_OR_RETURN(none, Intersect(none, more));
    }
    if (keyword == "oneOf") {  // or two at once
      for (size_t i = 0; i < parts.size(); ++i) {
        for (size_t j = i + 1; j < parts.size(); ++j) {
          ASSIGN_OR_RETURN(const Shapes a, NormalizeAt(parts[i], depth));
          ASSIGN_OR_RETURN(const Shapes b, NormalizeAt(parts[j], depth));
          ASSIGN_OR_RETURN(Shapes both, Intersect(a, b));
          Append(&none, std::move(both));
        }
      }
    }
    return none;
  }
  if (keyword == "not") {
    ASSIGN_OR_RETURN(const SchemaId part, Place(value));
    return NormalizeAt(part, depth);
  }
  if (keyword == "if") {
    ASSIGN_OR_RETURN(const SchemaId condition, Place(value));
    Shapes result;
    for (const bool holds : {true, false}) {
      const JsonValue* then = schema.Find(holds ? "then" : "else");
      if (then == nullptr) continue;
      ASSIGN_OR_RETURN(const Shapes shapes,
                       holds ? NormalizeAt(condition, depth) : NegateAt(condition, depth));
      ASSIGN_OR_RETURN(const SchemaId place, Place(*then));
      ASSIGN_OR_RETURN(const Shapes more, NegateAt(place, depth));
      ASSIGN_OR_RETURN(Shapes both, Intersect(shapes, more));
      Append(&result, std::move(both));
    }
    return result;
  }
  if (keyword == "extends") return Unsupported(keyword);
  return Dependencies(value, /*negated=*/true, depth);
}

Result<Shapes> SchemaAlgebra::NormalizePlace(const JsonValue& schema, int depth) {
  // Keywords in their order, which is the order of the members they list; the schema's own say
  // stands where it lists properties.
  size_t own_at = 0;
  for (size_t i = 0; i < schema.members.size(); ++i) {
    if (schema.members[i].first == "properties") own_at = i;
  }
  Shapes shapes = AnyShapes();
  for (size_t i = 0; i < schema.members.size(); ++i) {
    if (i == own_at) {
      ASSIGN_OR_RETURN(const Shapes own, Own(schema));
      ASSIGN_OR_RETURN(shapes, Intersect(shapes, own));
    }
    const std::string& keyword = schema.members[i].first;
    if (IsCombining(keyword)) {
      ASSIGN_OR_RETURN(const Shapes more, Keyword(keyword, schema, depth));
      ASSIGN_OR_RETURN(shapes, Intersect(shapes, more));
    }
  }
  return shapes;
}

Result<Shapes> SchemaAlgebra::NegatePlace(const JsonValue& schema, int depth) {
  ASSIGN_OR_RETURN(Shapes shapes, NegateOwn(schema));
  for (const auto& [keyword, value] : schema.members) {
    if (!IsCombining(keyword)) continue;
    ASSIGN_OR_RETURN(Shapes more, NegateKeyword(keyword, schema, depth));
    Append(&shapes, std::move(more));
  }
  if (shapes.size() > kMaxShapes) {
    return MakeError("the schema's combinations (allOf, anyOf, oneOf, not) have too many cases");
  }
  return shapes;
}

Result<Shapes> SchemaAlgebra::NormalizeAt(SchemaId id, int depth) {
  if (id == kAnyValue) return AnyShapes();
  if (id == kNoValue) return Shapes();
  if (const auto found = normalized_.find(id); found != normalized_.end()) {
    is_exact_ &= found->second.is_exact;
    return found->second.shapes;
  }
  if (depth > kMaxReferenceDepth || ++num_steps_ > kMaxSteps) {
    return MakeError("the schema's references and combinations nest deeper than 100");
  }
  // A schema that is being made from itself adds nothing to itself.
  if (!in_progress_.insert(uint64_t{id} * 2).second) {
    met_itself_ = true;
    return Shapes();
  }
  const Expression expression = expressions_[id];
  const bool was_exact = std::exchange(is_exact_, true);
  Shapes shapes;
  const auto run = [&]() -> Status {
    if (expression.kind == Expression::kPlace) {
      ASSIGN_OR_RETURN(shapes, NormalizePlace(*expression.place, depth + 1));
    } else if (expression.kind == Expression::kNot) {
      ASSIGN_OR_RETURN(shapes, NegateAt(expression.parts[0], depth + 1));
    } else {
      shapes = AnyShapes();
      for (SchemaId part : expression.parts) {
        ASSIGN_OR_RETURN(const Shapes more, NormalizeAt(part, depth + 1));
        ASSIGN_OR_RETURN(shapes, Intersect(shapes, more));
      }
    }
    return {};
  };
  const Status status = run();
  in_progress_.erase(uint64_t{id} * 2);
  if (in_progress_.empty()) met_itself_ = false;
  RETURN_IF_ERROR(status);
  if (!met_itself_) normalized_.emplace(id, Normalized{shapes, is_exact_});
  is_exact_ &= was_exact;
  return shapes;
}

Result<Shapes> SchemaAlgebra::NegateAt(SchemaId id, int depth) {
  const SchemaId negation = Not(id);
  if (negation == kAnyValue || negation == kNoValue ||
      expressions_[negation].kind != Expression::kNot) {
    return NormalizeAt(negation, depth);
  }
  const Expression& expression = expressions_[id];
  if (expression.kind == Expression::kAll) {
    Shapes shapes;
    const std::vector<SchemaId> parts = expression.parts;
    for (SchemaId part : parts) {
      ASSIGN_OR_RETURN(Shapes more, NegateAt(part, depth + 1));
      Append(&shapes, std::move(more));
    }
    return shapes;
  }
  if (depth > kMaxReferenceDepth || ++num_steps_ > kMaxSteps) {
    return MakeError("the schema's references and combinations nest deeper than 100");
  }
  if (!in_progress_.insert(uint64_t{id} * 2 + 1).second) {
    met_itself_ = true;
    return Shapes();
  }
  Result<Shapes> shapes = NegatePlace(*expression.place, depth + 1);
  in_progress_.erase(uint64_t{id} * 2 + 1);
  if (in_progress_.empty()) met_itself_ = false;
  return shapes;
}

Result<Shapes> SchemaAlgebra::Normalize(SchemaId id) { return NormalizeAt(id, 0); }

// ---- what shapes mean ----

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
        return MakeError("the schema's combinations of closed objects have too many cases");
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
