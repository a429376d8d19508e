#include "grammar/schema_grammar.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <unordered_map>

#include "grammar/schema_algebra.h"

namespace lapidary::grammar {
namespace {

using Type = JsonValue::Type;

constexpr uint32_t kMaxIndent = 20;
constexpr uint64_t kMaxCountedMembers = 20'000;
// Distinct elements may come in any order up to so many values: a grammar knows which are used up.
constexpr size_t kMaxUnorderedValues = 10;

class SchemaWriter {
 public:
  SchemaWriter(GrammarBuilder* builder, const JsonValue& schema, const ValueSyntax& syntax)
      : builder_(*builder),
        pool_(builder->regex()),
        syntax_(syntax),
        algebra_(&pool_, IsJson() ? TextEncoding::kJsonString : TextEncoding::kUtf8, schema) {
    blank_ = RegexPool::kEmpty;
    RegexId one_blank = RegexPool::kEmpty;
    if (IsJson()) {
      one_blank = pool_.Optional(pool_.Byte(' '));
      const RegexId indent =
          pool_.Repeat(pool_.Bytes(ByteSet::Of(' ') | ByteSet::Of('\t')), 0, kMaxIndent);
      blank_ = pool_.Or(one_blank, pool_.Concat(pool_.Byte('\n'), indent));
    }
    // A key's opening quote belongs to what comes before it, so that blanks lead to one quote and
    // not to every key.
    const RegexId quote = IsJson() ? pool_.Byte('"') : RegexPool::kEmpty;
    comma_ = builder_.Terminal(pool_.Concat(pool_.Byte(','), blank_));
    comma_key_ = builder_.Terminal(pool_.Concat(std::array{pool_.Byte(','), blank_, quote}));
    open_key_ = builder_.Terminal(pool_.Concat(std::array{pool_.Byte('{'), blank_, quote}));
    colon_ = pool_.Concat(pool_.Byte(':'), one_blank);
    open_array_ = builder_.Terminal(pool_.Concat(pool_.Byte('['), blank_));
    close_object_ = builder_.Terminal(pool_.Concat(blank_, pool_.Byte('}')));
    close_array_ = builder_.Terminal(pool_.Concat(blank_, pool_.Byte(']')));
    empty_object_ =
        builder_.Terminal(pool_.Concat(std::array{pool_.Byte('{'), blank_, pool_.Byte('}')}));
    empty_array_ = builder_.Terminal(pool_.Byte(']'));
    nothing_ = builder_.Choice(std::span<const NodeId>());
  }

  Result<NodeId> Write() {
    ASSIGN_OR_RETURN(const SchemaId root, algebra_.Root());
    const NodeId node = Value(root);
    while (!work_.empty()) {
      const auto [id, forward] = work_.back();
      work_.pop_back();
      ASSIGN_OR_RETURN(const Shapes shapes, algebra_.Normalize(id));
      std::vector<NodeId> alternatives;
      for (const Shape& shape : shapes) {
        ASSIGN_OR_RETURN(const NodeId alternative, WriteShape(shape));
        alternatives.push_back(alternative);
      }
      builder_.Resolve(forward, builder_.Choice(alternatives));
      if (pool_.limit_error() != nullptr) {
        return MakeError("the schema needs {}", pool_.limit_error());
      }
      if (builder_.num_nodes() > GrammarBuilder::kMaxNodes) {
        return MakeError("the schema needs more than 2,000,000 nodes of a grammar");
      }
    }
    return node;
  }

 private:
  bool IsJson() const { return syntax_.kind == ValueSyntax::kJson; }

  // The node of a schema; what it stands for is written later.
  NodeId Value(SchemaId id) {
    const auto [found, is_new] = values_.try_emplace(id, 0);
    if (is_new) {
      found->second = builder_.Forward();
      work_.emplace_back(id, found->second);
    }
    return found->second;
  }

  NodeId String(RegexId text) {
    if (IsJson()) {
      return builder_.Terminal(pool_.Concat(pool_.Byte('"'), pool_.Concat(text, pool_.Byte('"'))));
    }
    const NodeId quote = builder_.Token(syntax_.quote_token);
    return builder_.Sequence({quote, builder_.Terminal(text), quote});
  }

  // Behind the opening quote.
  RegexId KeyText(RegexId key) {
    const RegexId quote = IsJson() ? pool_.Byte('"') : RegexPool::kEmpty;
    return pool_.Concat(std::array{key, quote, colon_});
  }
  NodeId Key(const std::string& name) {
    return builder_.Terminal(
        pool_.Concat(pool_.Literal(IsJson() ? EscapeJson(name) + "\"" : name), colon_));
  }

  Result<NodeId> WriteShape(const Shape& shape) {
    if (shape.values != nullptr) return WriteValues(shape);
    switch (shape.type) {
      case Type::kNull:
        return builder_.Text("null");
      case Type::kBool:
        return builder_.Terminal(pool_.Or(pool_.Literal("true"), pool_.Literal("false")));
      case Type::kNumber: {
        const std::optional<RegexId> texts = NumberTexts(&pool_, shape.number);
        if (!texts) return MakeError("the schema's multipleOf is not supported");
        return builder_.Terminal(*texts);
      }
      case Type::kString:
        return String(algebra_.StringText(shape));
      case Type::kArray:
        return WriteArray(shape);
      case Type::kObject: {
        if (shape.has_additional.empty()) return WriteObject(shape);
        ASSIGN_OR_RETURN(const Shapes cases, algebra_.ExpandAdditional(shape));
        std::vector<NodeId> nodes;
        for (const Shape& one : cases) {
          ASSIGN_OR_RETURN(const NodeId node, WriteObject(one));
          nodes.push_back(node);
        }
        return builder_.Choice(nodes);
      }
    }
    return nothing_;
  }

  Result<NodeId> WriteValues(const Shape& shape) {
    std::vector<RegexId> scalars;
    std::vector<NodeId> nodes;
    for (const JsonValue* value : *shape.values) {
      ASSIGN_OR_RETURN(const bool is_valid, algebra_.Validate(*value, shape));
      if (!is_valid) continue;
      const bool is_text = value->IsString() && !IsJson();
      if (value->IsArray() || value->IsObject() || is_text) {
        nodes.push_back(Constant(*value));
      } else {
        scalars.push_back(Scalar(*value));
      }
    }
    if (!scalars.empty()) nodes.push_back(builder_.Terminal(pool_.Or(scalars)));
    return builder_.Choice(nodes);
  }

  // Not for strings between special tokens.
  RegexId Scalar(const JsonValue& value) {
    switch (value.type) {
      case Type::kNull:
        return pool_.Literal("null");
      case Type::kBool:
        return pool_.Literal(value.boolean ? "true" : "false");
      case Type::kNumber: {
        const std::string plain = Decimal::Parse(value.text).ToString();
        const RegexId written = pool_.Literal(value.text);
        return plain.size() > 20 ? written : pool_.Or(written, pool_.Literal(plain));
      }
      default:
        return pool_.Literal("\"" + EscapeJson(value.text) + "\"");
    }
  }

  NodeId Constant(const JsonValue& value) {
    if (value.IsString() && !IsJson()) return String(pool_.Literal(value.text));
    if (!value.IsArray() && !value.IsObject()) return builder_.Terminal(Scalar(value));
    std::vector<NodeId> parts;
    for (const JsonValue& item : value.items) {
      parts.push_back(parts.empty() ? open_array_ : comma_);
      parts.push_back(Constant(item));
    }
    std::vector<const std::pair<std::string, JsonValue>*> members;
    for (const auto& member : value.members) members.push_back(&member);
    if (!IsJson()) {
      std::ranges::stable_sort(members, {},
                               [](const auto* member) { return Lower(member->first); });
    }
    for (const auto* member : members) {
      parts.push_back(parts.empty() ? open_key_ : comma_key_);
      parts.push_back(Key(member->first));
      parts.push_back(Constant(member->second));
    }
    if (parts.empty() && value.IsObject()) return empty_object_;
    if (parts.empty()) return builder_.Sequence({open_array_, empty_array_});
    parts.push_back(value.IsArray() ? close_array_ : close_object_);
    return builder_.Sequence(parts);
  }

  static std::string Lower(std::string text) {
    for (char& c : text) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    }
    return text;
  }

  static uint32_t Less(uint32_t count, uint32_t by) {
    return count == Shape::kUnlimited ? count : count > by ? count - by : 0;
  }

  Result<NodeId> WriteArray(const Shape& shape) {
    size_t num_prefix = 0;
    for (const auto& clause : shape.array_clauses) {
      num_prefix = std::max(num_prefix, clause->prefix.size());
    }
    num_prefix = std::min<size_t>(num_prefix, shape.max_items);
    const SchemaId rest = algebra_.ElementSchema(shape, num_prefix);
    if (shape.has_distinct_items && shape.max_items > 1) {
      return WriteDistinct(shape, num_prefix, rest);
    }
    if (!shape.contains.empty()) return WriteContaining(shape, num_prefix, rest);
    // What may follow once `count` elements are written, from the last listed one backwards.
    const uint32_t first_free = static_cast<uint32_t>(std::max<size_t>(num_prefix, 1));
    NodeId tail = builder_.Sequence(
        {builder_.Repeat(builder_.Sequence({comma_, Value(rest)}),
                         Less(shape.min_items, first_free), Less(shape.max_items, first_free)),
         close_array_});
    for (uint32_t count = first_free; count-- > 1;) {
      std::vector<NodeId> options;
      if (count >= shape.min_items) options.push_back(close_array_);
      if (count < shape.max_items) {
        options.push_back(
            builder_.Sequence({comma_, Value(algebra_.ElementSchema(shape, count)), tail}));
      }
      tail = builder_.Choice(options);
    }
    std::vector<NodeId> options;
    if (shape.min_items == 0) options.push_back(empty_array_);
    if (shape.max_items > 0) {
      options.push_back(builder_.Sequence({Value(algebra_.ElementSchema(shape, 0)), tail}));
    }
    return builder_.Sequence({open_array_, builder_.Choice(options)});
  }

  // Elements of which at least one fits more. Cases beyond that are not written: fewer values.
  Result<NodeId> WriteContaining(const Shape& shape, size_t num_prefix, SchemaId rest) {
    if (shape.contains.size() > 1 || num_prefix > 0) {
      return MakeError("the schema's contains is not supported beside prefixItems or another one");
    }
    const bool is_counted = shape.min_items > 1 || shape.max_items != Shape::kUnlimited;
    if (is_counted && shape.max_items == 0) return nothing_;
    const NodeId special = Value(algebra_.All({rest, shape.contains[0]}));
    // The special element first among at most max_items; or anywhere, where nothing is counted.
    const NodeId before =
        builder_.Repeat(builder_.Sequence({Value(rest), comma_}), 0, is_counted ? 0 : kUnbounded);
    const NodeId after = builder_.Repeat(builder_.Sequence({comma_, Value(rest)}),
                                         Less(shape.min_items, 1), Less(shape.max_items, 1));
    return builder_.Sequence({open_array_, before, special, after, close_array_});
  }

  // The values of a schema, each once; none where they are not listed one by one.
  Result<std::optional<std::vector<const JsonValue*>>> ListedValues(SchemaId id) {
    static const JsonValue kNull{.type = Type::kNull};
    static const JsonValue kFalse{.type = Type::kBool, .boolean = false};
    static const JsonValue kTrue{.type = Type::kBool, .boolean = true};
    std::vector<const JsonValue*> listed;
    const auto add = [&](const JsonValue* value) {
      const auto is_same = [&](const JsonValue* other) { return Equal(*value, *other); };
      if (std::ranges::none_of(listed, is_same)) listed.push_back(value);
    };
    ASSIGN_OR_RETURN(const Shapes shapes, algebra_.Normalize(id));
    for (const Shape& shape : shapes) {
      if (shape.values != nullptr) {
        for (const JsonValue* value : *shape.values) {
          ASSIGN_OR_RETURN(const bool is_valid, algebra_.Validate(*value, shape));
          if (is_valid) add(value);
        }
      } else if (shape.type == Type::kNull) {
        add(&kNull);
      } else if (shape.type == Type::kBool) {
        add(&kFalse);
        add(&kTrue);
      } else {
        return std::optional<std::vector<const JsonValue*>>();
      }
    }
    return std::optional(std::move(listed));
  }

  // Elements of which no two are equal: listed values, each at most once. Many come in the
  // schema's order only: fewer values.
  Result<NodeId> WriteDistinct(const Shape& shape, size_t num_prefix, SchemaId rest) {
    ASSIGN_OR_RETURN(const auto values, ListedValues(rest));
    if (!values || num_prefix > 0 || !shape.contains.empty()) {
      return MakeError(
          "the schema's uniqueItems is supported only where items are listed values (enum)");
    }
    std::vector<NodeId> nodes;
    for (const JsonValue* value : *values) nodes.push_back(Constant(*value));
    std::vector<NodeId> options;
    if (shape.min_items == 0) options.push_back(empty_array_);
    if (nodes.size() <= kMaxUnorderedValues) {
      options.push_back(InAnyOrder(nodes, shape.min_items, shape.max_items));
    } else {
      Members members{.comma = comma_, .close = close_array_};
      for (const NodeId node : nodes) members.listed.push_back({node, /*required=*/false});
      members.min = shape.min_items;
      members.max = shape.max_items;
      ASSIGN_OR_RETURN(const NodeId first, WriteMembers(&members, "minItems or maxItems"));
      options.push_back(first);
    }
    return builder_.Sequence({open_array_, builder_.Choice(options)});
  }

  // One or more of these, each at most once, and the end of the array.
  NodeId InAnyOrder(std::span<const NodeId> values, uint32_t min, uint32_t max) {
    const uint32_t num_sets = 1u << values.size();
    std::vector<NodeId> after(num_sets);  // by the set of values that are used up
    NodeId next = nothing_;
    for (uint32_t used = num_sets; used-- > 0;) {
      const auto count = static_cast<uint32_t>(std::popcount(used));
      std::vector<NodeId> values_left;
      for (size_t value_idx = 0; value_idx < values.size() && count < max; ++value_idx) {
        const uint32_t with_value = used | 1u << value_idx;
        if (with_value == used) continue;
        values_left.push_back(builder_.Sequence({values[value_idx], after[with_value]}));
      }
      next = builder_.Choice(values_left);
      std::vector<NodeId> options;
      if (count >= min) options.push_back(close_array_);
      if (!values_left.empty()) options.push_back(builder_.Sequence({comma_, next}));
      after[used] = builder_.Choice(options);
    }
    return next;  // of the empty set
  }

  // Members of an object, or distinct elements of an array: at most once each, in this order.
  struct Members {
    struct Listed {
      NodeId node;  // key and value, or an element
      bool required;
    };
    NodeId comma;
    NodeId close;
    std::vector<Listed> listed = {};
    NodeId other = 0;  // key and value of one that is not listed
    bool has_other = false;
    uint32_t min = 0;
    uint32_t max = Shape::kUnlimited;
    // Counts are told apart up to here.
    uint32_t most = 1;
    std::vector<uint32_t> num_required_from = {};              // [num_listed + 1]
    std::map<std::pair<size_t, uint32_t>, NodeId> after = {};  // more members, or the end
    std::map<std::pair<size_t, uint32_t>, NodeId> next = {};   // one member and what follows
    std::vector<std::pair<size_t, uint32_t>> to_write = {};
  };

  Result<NodeId> WriteObject(const Shape& shape) {
    ASSIGN_OR_RETURN(std::vector<ObjectProperty> listed, algebra_.ListedProperties(shape));
    Members members{.comma = comma_key_, .close = close_object_};
    members.min = shape.min_properties;
    members.max = shape.max_properties;
    std::vector<std::pair<RegexId, SchemaId>> others;
    // In a call, keys that are not listed would break the order; a free map has no other keys.
    if (IsJson() || listed.empty()) {
      ASSIGN_OR_RETURN(others, algebra_.OtherKeys(shape, listed));
    }
    if (!IsJson()) {
      std::ranges::stable_sort(listed, {},
                               [](const ObjectProperty& property) { return Lower(property.name); });
    }
    for (const ObjectProperty& property : listed) {
      if (property.schema == kNoValue) {
        if (property.required) return nothing_;
        continue;
      }
      members.listed.push_back(
          {builder_.Sequence({Key(property.name), Value(property.schema)}), property.required});
    }
    std::vector<NodeId> other_members;
    for (const auto& [key, schema] : others) {
      RegexId text = key;
      if (!IsJson()) {  // a bare key ends at its colon
        const ByteSet ends = ByteSet::Of(':') | ByteSet::Of(',') | ByteSet::Of('{') |
                             ByteSet::Of('}') | ByteSet::Of('\n');
        text = pool_.And(key, pool_.Repeat(pool_.Bytes(~ends), 1, RegexPool::kUnbounded));
      }
      other_members.push_back(builder_.Sequence({builder_.Terminal(KeyText(text)), Value(schema)}));
    }
    members.has_other = !other_members.empty();
    members.other = builder_.Choice(other_members);
    ASSIGN_OR_RETURN(const NodeId first, WriteMembers(&members, "minProperties or maxProperties"));
    std::vector<NodeId> options = {builder_.Sequence({open_key_, first})};
    if (members.min == 0 && members.num_required_from[0] == 0) options.push_back(empty_object_);
    return builder_.Choice(options);
  }

  // One or more members, and the end. `limits` are the keywords that set them.
  Result<NodeId> WriteMembers(Members* members, const char* limits) {
    const size_t num_listed = members->listed.size();
    members->num_required_from.resize(num_listed + 1, 0);
    for (size_t i = num_listed; i-- > 0;) {
      members->num_required_from[i] =
          members->num_required_from[i + 1] + (members->listed[i].required ? 1 : 0);
    }
    // Limits that the listed members keep by themselves need no counting.
    if (!members->has_other && members->max >= num_listed) members->max = Shape::kUnlimited;
    if (members->min <= members->num_required_from[0]) members->min = 0;
    members->most = std::max(1u, members->max == Shape::kUnlimited ? members->min : members->max);
    if (uint64_t{members->most} * (num_listed + 1) > kMaxCountedMembers) {
      return MakeError("the schema's {} needs more than {} members to be counted", limits,
                       kMaxCountedMembers);
    }
    const NodeId first = Next(members, 0, 0);
    while (!members->to_write.empty()) {
      const auto [from, count] = members->to_write.back();
      members->to_write.pop_back();
      WriteNext(members, from, count);
    }
    return first;
  }

  // Members from the listed one `from` on, after `count` of them: at least one more.
  NodeId Next(Members* members, size_t from, uint32_t count) {
    const auto [found, is_new] = members->next.try_emplace({from, count}, 0);
    if (is_new) {
      found->second = builder_.Forward();
      members->to_write.emplace_back(from, count);
    }
    return found->second;
  }

  NodeId After(Members* members, size_t from, uint32_t count) {
    const auto [found, is_new] = members->after.try_emplace({from, count}, 0);
    if (!is_new) return found->second;
    std::vector<NodeId> options;
    if (members->num_required_from[from] == 0 && count >= members->min) {
      options.push_back(members->close);
    }
    if (count < members->max && (from < members->listed.size() || members->has_other)) {
      options.push_back(builder_.Sequence({members->comma, Next(members, from, count)}));
    }
    const NodeId node = builder_.Choice(options);
    members->after[{from, count}] = node;
    return node;
  }

  void WriteNext(Members* members, size_t from, uint32_t count) {
    const NodeId forward = members->next.at({from, count});
    std::vector<NodeId> options;
    const uint32_t more = std::min(count + 1, members->most);
    if (count < members->max) {
      if (from < members->listed.size()) {
        const Members::Listed& member = members->listed[from];
        options.push_back(builder_.Sequence({member.node, After(members, from + 1, more)}));
        if (!member.required) options.push_back(Next(members, from + 1, count));
      } else if (members->has_other) {
        options.push_back(builder_.Sequence({members->other, After(members, from, more)}));
      }
    }
    builder_.Resolve(forward, builder_.Choice(options));
  }

  GrammarBuilder& builder_;
  RegexPool& pool_;
  ValueSyntax syntax_;
  SchemaAlgebra algebra_;
  RegexId blank_;
  RegexId colon_;
  NodeId comma_, comma_key_, open_key_, open_array_, close_object_, close_array_, empty_object_,
      empty_array_, nothing_;
  std::unordered_map<SchemaId, NodeId> values_;
  std::vector<std::pair<SchemaId, NodeId>> work_;
};

}  // namespace

Result<NodeId> AddSchema(GrammarBuilder* builder, const JsonValue& schema,
                         const ValueSyntax& syntax) {
  return SchemaWriter(builder, schema, syntax).Write();
}

}  // namespace lapidary::grammar
