#include "grammar/schema_algebra.h"

#include <algorithm>
#include <array>
#include <utility>

#include "grammar/regex_syntax.h"
#include "grammar/schema_parts.h"

namespace lapidary::grammar {
namespace {

using Type = JsonValue::Type;

constexpr int kMaxReferenceDepth = 100;
constexpr size_t kMaxSteps = 300'000;
// What it takes to make one, in steps of Work.
constexpr int64_t kStepsPerShape = 100;

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

Error TooManyCases() {
  return MakeError(
      "the schema's combinations (allOf, anyOf, oneOf, not) have too many cases: more than {} at "
      "once, or {} altogether",
      kMaxShapes, kMaxSteps);
}

bool IsEmptyRange(const NumberRange& range) {
  if (!range.min || !range.max) return false;
  const auto order = range.min->value <=> range.max->value;
  return order > 0 || (order == 0 && (range.min->exclusive || range.max->exclusive));
}

}  // namespace

Error SchemaAlgebra::NeedsLimit() const {
  return MakeError("the schema needs {}", pool_.limit_error());
}

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
      both.has_distinct_items |= b.has_distinct_items;
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
    if (shapes.size() > kMaxShapes || ++num_steps_ > kMaxSteps) return TooManyCases();
    if (!pool_.TakeWork(kStepsPerShape * std::ssize(b))) return NeedsLimit();
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

Result<Shapes> SchemaAlgebra::At(SchemaId id, Sense sense, int depth) {
  return sense == Sense::kFits ? NormalizeAt(id, depth) : NegateAt(id, depth);
}

Result<Shapes> SchemaAlgebra::Any(const std::vector<SchemaId>& parts, Sense sense, int depth) {
  Shapes shapes;
  for (const SchemaId part : parts) {
    ASSIGN_OR_RETURN(Shapes more, At(part, sense, depth));
    Append(&shapes, std::move(more));
  }
  return shapes;
}

Result<Shapes> SchemaAlgebra::Every(const std::vector<SchemaId>& parts, Sense sense, int depth) {
  Shapes shapes = AnyShapes();
  for (const SchemaId part : parts) {
    ASSIGN_OR_RETURN(const Shapes more, At(part, sense, depth));
    ASSIGN_OR_RETURN(shapes, Intersect(shapes, more));
  }
  return shapes;
}

// None of the parts, or two at once.
Result<Shapes> SchemaAlgebra::NotOneOf(const std::vector<SchemaId>& parts, int depth) {
  ASSIGN_OR_RETURN(Shapes shapes, Every(parts, Sense::kViolates, depth));
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t j = i + 1; j < parts.size(); ++j) {
      ASSIGN_OR_RETURN(Shapes both, Every({parts[i], parts[j]}, Sense::kFits, depth));
      Append(&shapes, std::move(both));
    }
  }
  return shapes;
}

// A case of the condition fits with what it asks for, and violates with what that forbids.
Result<Shapes> SchemaAlgebra::Conditional(const JsonValue& schema, Sense sense, int depth) {
  ASSIGN_OR_RETURN(const SchemaId condition, Place(*schema.Find("if")));
  Shapes result;
  for (const bool holds : {true, false}) {
    const JsonValue* then = schema.Find(holds ? "then" : "else");
    if (then == nullptr && sense == Sense::kViolates) continue;
    ASSIGN_OR_RETURN(Shapes shapes, At(condition, holds ? Sense::kFits : Sense::kViolates, depth));
    if (then != nullptr) {
      ASSIGN_OR_RETURN(const SchemaId place, Place(*then));
      ASSIGN_OR_RETURN(const Shapes more, At(place, sense, depth));
      ASSIGN_OR_RETURN(shapes, Intersect(shapes, more));
    }
    Append(&result, std::move(shapes));
  }
  return result;
}

Result<Shapes> SchemaAlgebra::Keyword(std::string_view keyword, const JsonValue& schema,
                                      Sense sense, int depth) {
  const bool fits = sense == Sense::kFits;
  const JsonValue& value = *schema.Find(keyword);
  if (keyword == "$ref" || keyword == "$recursiveRef") {
    if (!value.IsString()) return MakeError("the schema's $ref must be a string");
    ASSIGN_OR_RETURN(const JsonValue* target, Resolve(value.text));
    ASSIGN_OR_RETURN(const SchemaId place, Place(*target));
    return At(place, sense, depth);
  }
  if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf") {
    ASSIGN_OR_RETURN(const std::vector<SchemaId> parts, Places(value, keyword));
    if (keyword == "oneOf") return fits ? OneOf(parts, depth) : NotOneOf(parts, depth);
    return (keyword == "allOf") == fits ? Every(parts, sense, depth) : Any(parts, sense, depth);
  }
  if (keyword == "not") {
    ASSIGN_OR_RETURN(const SchemaId part, Place(value));
    return At(part, fits ? Sense::kViolates : Sense::kFits, depth);
  }
  if (keyword == "if") return Conditional(schema, sense, depth);
  if (keyword == "extends") return Unsupported(keyword);
  return Dependencies(value, /*negated=*/!fits, depth);
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
      ASSIGN_OR_RETURN(const Shapes more, Keyword(keyword, schema, Sense::kFits, depth));
      ASSIGN_OR_RETURN(shapes, Intersect(shapes, more));
    }
  }
  return shapes;
}

Result<Shapes> SchemaAlgebra::NegatePlace(const JsonValue& schema, int depth) {
  ASSIGN_OR_RETURN(Shapes shapes, NegateOwn(schema));
  for (const auto& [keyword, value] : schema.members) {
    if (!IsCombining(keyword)) continue;
    ASSIGN_OR_RETURN(Shapes more, Keyword(keyword, schema, Sense::kViolates, depth));
    Append(&shapes, std::move(more));
  }
  if (shapes.size() > kMaxShapes) return TooManyCases();
  return shapes;
}

Result<Shapes> SchemaAlgebra::NormalizeAt(SchemaId id, int depth) {
  if (id == kAnyValue) return AnyShapes();
  if (id == kNoValue) return Shapes();
  if (const auto found = normalized_.find(id); found != normalized_.end()) {
    is_exact_ &= found->second.is_exact;
    return found->second.shapes;
  }
  if (depth > kMaxReferenceDepth) {
    return MakeError("the schema's references and combinations nest deeper than {}",
                     kMaxReferenceDepth);
  }
  if (++num_steps_ > kMaxSteps) return TooManyCases();
  if (!pool_.TakeWork(kStepsPerShape)) return NeedsLimit();
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
      ASSIGN_OR_RETURN(shapes, Every(expression.parts, Sense::kFits, depth + 1));
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
    const std::vector<SchemaId> parts = expression.parts;  // Expressions move as they grow.
    return Any(parts, Sense::kViolates, depth + 1);
  }
  if (depth > kMaxReferenceDepth) {
    return MakeError("the schema's references and combinations nest deeper than {}",
                     kMaxReferenceDepth);
  }
  if (++num_steps_ > kMaxSteps) return TooManyCases();
  if (!pool_.TakeWork(kStepsPerShape)) return NeedsLimit();
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

}  // namespace lapidary::grammar
