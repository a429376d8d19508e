// JSON Schema as an algebra: any combination of schemas becomes a list of shapes.
//
// allOf, anyOf, oneOf, not, if/then/else, dependencies and references are and, or and not over
// shapes. Every shape is sound: what fits it is valid. Where a negation has a part that shapes
// cannot express (not a multiple of 7), that part is left out, so fewer values are offered, never
// wrong ones. Keywords that cannot be kept at all are errors that name them.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "grammar/code_points.h"
#include "grammar/json_value.h"
#include "grammar/regex_pool.h"
#include "grammar/schema_shape.h"

namespace lapidary::grammar {

// A member of an object as all clauses together see it.
struct ObjectProperty {
  std::string name;
  SchemaId schema;
  bool required;
};

class SchemaAlgebra {
 public:
  // `document` must outlive the algebra. Strings are matched as `encoding` writes them.
  SchemaAlgebra(RegexPool* pool, TextEncoding encoding, const JsonValue& document);

  Result<SchemaId> Root();
  SchemaId All(std::vector<SchemaId> parts);
  // The alternatives of a schema; empty when nothing fits.
  Result<Shapes> Normalize(SchemaId id);
  // Provably without values. `depth` bounds how far into members and elements it looks.
  Result<bool> IsEmpty(const Shape& shape, int depth);
  Result<bool> IsEmpty(SchemaId id, int depth);
  Result<bool> Validate(const JsonValue& value, const Shape& shape, int depth = 0);

  // The characters between a string's quotes.
  RegexId StringText(const Shape& shape);
  RegexId PlainCharacter() const { return plain_character_; }

  // Listed members in order: properties first, then the other required ones. Those that cannot be
  // present are listed too, with kNoValue.
  Result<std::vector<ObjectProperty>> ListedProperties(const Shape& shape);
  // Keys that are not listed: what they look like and what their values are.
  Result<std::vector<std::pair<RegexId, SchemaId>>> OtherKeys(
      const Shape& shape, const std::vector<ObjectProperty>& listed);
  // Replaces has_additional by plainer shapes.
  Result<Shapes> ExpandAdditional(const Shape& shape);
  SchemaId ElementSchema(const Shape& shape, size_t index);

 private:
  struct Expression {
    enum Kind { kAny, kNone, kPlace, kAll, kNot } kind;
    const JsonValue* place = nullptr;
    std::vector<SchemaId> parts = {};
    auto operator<=>(const Expression&) const = default;
  };

  enum class Sense { kFits, kViolates };

  // Of the regular expressions.
  Error NeedsLimit() const;
  SchemaId Intern(Expression expression);
  Result<SchemaId> Place(const JsonValue& schema);
  SchemaId Not(SchemaId id);

  Result<Shapes> NormalizeAt(SchemaId id, int depth);
  Result<Shapes> NegateAt(SchemaId id, int depth);
  Result<Shapes> NormalizePlace(const JsonValue& schema, int depth);
  Result<Shapes> NegatePlace(const JsonValue& schema, int depth);
  Result<Shapes> Own(const JsonValue& schema);
  Result<Shapes> NegateOwn(const JsonValue& schema);
  Result<Shapes> OneOf(const std::vector<SchemaId>& parts, int depth);
  Result<Shapes> Dependencies(const JsonValue& dependencies, bool negated, int depth);
  Result<Shapes> NotOneOf(const std::vector<SchemaId>& parts, int depth);
  Result<Shapes> Conditional(const JsonValue& schema, Sense sense, int depth);
  Result<Shapes> Keyword(std::string_view keyword, const JsonValue& schema, Sense sense, int depth);
  // What fits a schema, or what violates it: of one, of any of several, of every one.
  Result<Shapes> At(SchemaId id, Sense sense, int depth);
  Result<Shapes> Any(const std::vector<SchemaId>& parts, Sense sense, int depth);
  Result<Shapes> Every(const std::vector<SchemaId>& parts, Sense sense, int depth);

  Result<Shapes> Intersect(const Shapes& a, const Shapes& b);
  std::optional<Shape> Intersect(const Shape& a, const Shape& b);

  Status OwnNumber(const JsonValue& schema, Shape* shape);
  Status OwnString(const JsonValue& schema, Shape* shape);
  Status OwnArray(const JsonValue& schema, Shape* shape);
  Status OwnObject(const JsonValue& schema, Shape* shape);
  // Add what violates a schema's own keywords, type by type.
  Status ViolateType(const JsonValue& schema, Shapes* shapes);
  void ViolateValues(const std::vector<const JsonValue*>& excluded, Shapes* shapes);
  Status ViolateNumber(const JsonValue& schema, Shapes* shapes);
  Status ViolateString(const JsonValue& schema, Shapes* shapes);
  Status ViolateArray(const JsonValue& schema, Shapes* shapes);
  Status ViolateObject(const JsonValue& schema, Shapes* shapes);
  Status CheckSupported(const JsonValue& schema);
  Result<std::shared_ptr<ObjectClause>> ClauseOf(const JsonValue& schema);
  Result<std::vector<SchemaId>> Places(const JsonValue& list, std::string_view keyword);
  Result<RegexId> KeyPattern(const std::string& pattern);
  Result<RegexId> KeyLanguage(const JsonValue& names);
  SchemaId PropertySchema(const Shape& shape, const std::string& name);
  Result<const JsonValue*> Resolve(const std::string& reference);
  void IndexIds();
  std::string Encoded(std::string_view text) const;

  RegexPool& pool_;
  TextEncoding encoding_;
  const JsonValue& document_;
  RegexId plain_character_;    // as a string without patterns writes it
  RegexId pattern_character_;  // as patterns write it
  std::vector<Expression> expressions_;
  std::map<Expression, SchemaId> expression_ids_;
  struct Normalized {
    Shapes shapes;
    bool is_exact;
  };
  std::unordered_map<SchemaId, Normalized> normalized_;
  std::unordered_map<SchemaId, bool> empty_;
  std::unordered_set<uint64_t> in_progress_;
  bool met_itself_ = false;
  // Cleared where a negation leaves something out: then "nothing fits both" proves nothing.
  bool is_exact_ = true;
  std::unordered_map<std::string, RegexId> regexes_;
  std::unordered_map<std::string, const JsonValue*> ids_;
  bool indexed_ids_ = false;
  size_t num_steps_ = 0;
};

}  // namespace lapidary::grammar
