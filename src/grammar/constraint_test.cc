#include "grammar/constraint.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lapidary::grammar {
namespace {

// A token for every byte, then special ones. In texts of these tests, upper-case Greek letters
// stand for the special tokens.
enum SpecialToken : int32_t { kCall = 256, kCallEnd, kQuote, kThink, kThinkEnd, kStop, kNumTokens };

CompileContext ByteContext() {
  static const auto vocabulary = [] {
    std::vector<std::string> bytes(kNumTokens);
    for (int byte = 0; byte < 256; ++byte) bytes[byte] = std::string(1, static_cast<char>(byte));
    return std::make_shared<TokenVocabulary>(bytes);
  }();
  return {.vocabulary = vocabulary,
          .control = {kCall, kCallEnd, kQuote, kThink, kThinkEnd},
          .stop_tokens = {kStop}};
}

std::vector<int32_t> Tokens(std::string_view text) {
  const std::vector<std::pair<std::string_view, int32_t>> names = {
      {"<call>", kCall},   {"<end>", kCallEnd},          {"<q>", kQuote},
      {"<think>", kThink}, {"<end-thought>", kThinkEnd},
  };
  std::vector<int32_t> tokens;
  while (!text.empty()) {
    size_t length = 1;
    int32_t token = static_cast<uint8_t>(text[0]);
    for (const auto& [name, id] : names) {
      if (!text.starts_with(name)) continue;
      token = id;
      length = name.size();
    }
    tokens.push_back(token);
    text.remove_prefix(length);
  }
  return tokens;
}

class Checker {
 public:
  explicit Checker(const Constraint& constraint) {
    auto compiled = Compile(constraint, ByteContext());
    if (compiled.ok()) {
      grammar_ = *compiled;
    } else {
      error_ = compiled.error().message;
    }
  }
  static Checker Schema(std::string schema) {
    return Checker({.kind = Constraint::Kind::kJsonSchema, .text = std::move(schema)});
  }
  static Checker Ebnf(std::string text) {
    return Checker({.kind = Constraint::Kind::kGrammar, .text = std::move(text)});
  }

  bool Fits(std::string_view text) const {
    EXPECT_NE(grammar_, nullptr) << error_;
    if (grammar_ == nullptr) return false;
    Matcher matcher(grammar_);
    for (int32_t token : Tokens(text)) {
      const Result<bool> accepted = matcher.Accept(token);
      EXPECT_TRUE(accepted.ok());
      if (!accepted.ok() || !*accepted) return false;
    }
    return matcher.CanStop();
  }
  const std::string& error() const { return error_; }

 private:
  std::shared_ptr<const CompiledGrammar> grammar_;
  std::string error_;
};

void ExpectFits(const std::string& schema, const std::vector<std::string>& valid,
                const std::vector<std::string>& invalid) {
  const Checker checker = Checker::Schema(schema);
  EXPECT_EQ(checker.error(), "") << schema;
  if (!checker.error().empty()) return;
  for (const std::string& text : valid) EXPECT_TRUE(checker.Fits(text)) << schema << "\n" << text;
  for (const std::string& text : invalid)
    EXPECT_FALSE(checker.Fits(text)) << schema << "\n" << text;
}

TEST(SchemaTest, Types) {
  ExpectFits(R"({"type": "string"})", {R"("")", R"("aé\n\u00e9")"},
             {"1", R"("a)", "\"\n\"", R"("\x")", R"("\ud800")"});
  ExpectFits(R"({"type": "integer"})", {"0", "-12", "100"}, {"01", "1.5", "-", "1e3", "\"1\""});
  ExpectFits(R"({"type": "number"})", {"0", "-1.5", "1e3", "2.5E-3"}, {".5", "1.", "+1"});
  ExpectFits(R"({"type": ["boolean", "null"]})", {"true", "false", "null"}, {"0", "nul"});
  ExpectFits("true", {R"({"a": [1, {"b": null}]})", "3"}, {"{a: 1}", "[1,]"});
}

TEST(SchemaTest, ObjectsListTheirPropertiesInOrder) {
  ExpectFits(R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
                 "required": ["b"], "additionalProperties": false})",
             {R"({"a": 1, "b": null})", R"({"b":null})", "{\n  \"b\": null\n}"},
             {R"({"b": null, "a": 1})", R"({"a": 1})", "{}", R"({"b": null, "c": 1})",
              R"({"b": null,})", R"({  "b": null})"});
  ExpectFits(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["z"]})",
             {R"({"a": 1, "z": [], "x": 1})", R"({"z": 0})"},
             {R"({"x": 1, "z": 0})", R"({"z": 0, "a": "1"})"});
  ExpectFits(R"({"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$":
                 {"minimum": 3}}, "additionalProperties": {"type": "null"}})",
             {R"({"x1": 1, "a": null})", R"({"xy": 3})", R"({"ay": 3})"},
             {R"({"x1": null})", R"({"a": 1})", R"({"xy": 2})", R"({"xy": 3.5})"});
}

TEST(SchemaTest, KeysKeepTheirSchema) {
  ExpectFits(R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}})",
             {R"({"a": 1, "b": 2})", "{}"}, {R"({"c": 1})"});
  ExpectFits(R"({"type": "object", "propertyNames": {"maxLength": 1}, "properties": {"xx": {}}})",
             {R"({"a": 1})"}, {R"({"xx": 1})", R"({"ab": 1})"});
}

TEST(SchemaTest, MembersAreCounted) {
  ExpectFits(R"({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1,
                 "maxProperties": 2})",
             {R"({"a": 1})", R"({"b": 1, "c": 1})", R"({"a": 1, "b": 2})"},
             {"{}", R"({"a": 1, "b": 1, "c": 1})"});
}

TEST(SchemaTest, Arrays) {
  ExpectFits(R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
             {"[1]", "[1, 2, 3]", "[1,2]"}, {"[]", "[1, 2, 3, 4]", "[\"1\"]"});
  ExpectFits(R"({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false,
                 "type": "array"})",
             {"[]", R"(["a"])", R"(["a", 1])"}, {R"(["a", 1, 2])", "[1]"});
  ExpectFits(R"({"type": "array", "contains": {"const": 7}})", {"[7]", "[1, 7, 2]"}, {"[]", "[1]"});
}

TEST(SchemaTest, DistinctElementsAreUsedUp) {
  ExpectFits(R"({"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b", 1, 1.0, null]},
                 "minItems": 1, "maxItems": 3})",
             {R"(["a"])", R"(["b", "a", 1])", "[null, 1]"},
             {"[]", R"(["a", "a"])", R"(["a", "b", "a"])", "[1, 1.0]", R"(["a", "b", 1, null])"});
  ExpectFits(R"({"type": "array", "uniqueItems": true, "items": {"type": ["boolean", "null"]}})",
             {"[]", "[null, true, false]", "[false, true]"}, {"[true, true]", "[null, 1]"});
  // One element is always distinct, whatever it is, and so are those of a listed array.
  ExpectFits(R"({"type": "array", "uniqueItems": true, "maxItems": 1})", {"[]", "[[1, 1]]"},
             {"[1, 2]"});
  ExpectFits(R"({"enum": [[1, 1], [1, 2]], "uniqueItems": true})", {"[1, 2]"}, {"[1, 1]"});
  // Other parts of a schema may list the values.
  ExpectFits(R"({"allOf": [{"type": "array", "uniqueItems": true}, {"items": {"enum": [1, 2]}}]})",
             {"[2, 1]", "[]"}, {"[2, 2]"});
  EXPECT_NE(Checker::Schema(R"({"type": "array", "uniqueItems": true, "items": {"const": 1},
                                "minItems": 2})")
                .error()
                .find("no text"),
            std::string::npos);
}

TEST(SchemaTest, ManyDistinctElementsComeInTheOrderOfTheirList) {
  ExpectFits(R"({"type": "array", "uniqueItems": true, "minItems": 2, "maxItems": 4,
                 "items": {"enum": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}})",
             {"[0, 1]", "[3, 5, 11]", "[8, 9, 10, 11]"},
             {"[1, 0]", "[11]", "[5, 5]", "[1, 2, 3, 4, 5]", "[]"});
}

TEST(SchemaTest, NumbersKeepTheirRangesExactly) {
  for (const auto& [low, high] : {std::pair(-17, 305), std::pair(0, 9), std::pair(10, 10),
                                  std::pair(-120, -7), std::pair(99, 101)}) {
    const Checker checker = Checker::Schema(
        fmt::format(R"({{"type": "integer", "minimum": {}, "maximum": {}}})", low, high));
    for (int number = -330; number < 330; ++number) {
      EXPECT_EQ(checker.Fits(std::to_string(number)), low <= number && number <= high)
          << number << " in " << low << " to " << high;
    }
  }
  const Checker checker =
      Checker::Schema(R"({"type": "number", "exclusiveMinimum": -1.25, "maximum": 2.5})");
  for (int hundredths = -300; hundredths <= 300; ++hundredths) {
    EXPECT_EQ(checker.Fits(fmt::format("{:.2f}", hundredths / 100.0)),
              -125 < hundredths && hundredths <= 250)
        << hundredths;
  }
  ExpectFits(R"({"type": "number", "multipleOf": 0.25})", {"0.5", "3", "-1.75", "2.0"},
             {"0.3", "1.755"});
  ExpectFits(R"({"type": "integer", "multipleOf": 12, "minimum": 20})", {"24", "120"},
             {"12", "25", "0"});
}

TEST(SchemaTest, StringsKeepLengthPatternAndFormat) {
  ExpectFits(R"({"type": "string", "minLength": 2, "maxLength": 3})", {R"("ab")", R"("é\n€")"},
             {R"("a")", R"("abcd")"});
  ExpectFits(R"({"type": "string", "pattern": "^[a-z]+-\\d{2}$", "maxLength": 6})", {R"("abc-12")"},
             {R"("abcd-12")", R"("abc-1")", R"("ABC-12")"});
  ExpectFits(R"({"type": "string", "pattern": "b"})", {R"("abc")"}, {R"("ac")"});
  ExpectFits(R"({"type": "string", "format": "date"})", {R"("2024-02-29")"},
             {R"("2023-02-29")", R"("2024-13-01")"});
  ExpectFits(
      R"({"type": "string", "format": "ipv6"})",
      {R"("::1")", R"("1:2:3:4:5:6:7:8")", R"("fe80::1:2")", R"("1::")", R"("::ffff:1.2.3.4")"},
      {R"("1:2:3")", R"("1::2::3")", R"("1:2:3:4:5:6:7:8:9")"});
  ExpectFits(R"({"type": "string", "format": "date-time"})", {R"("2024-01-31T23:59:59Z")"},
             {R"("2024-01-31")", R"("2024-01-31T24:00:00Z")"});
}

TEST(SchemaTest, EnumsAreFilteredByTheRest) {
  ExpectFits(R"({"enum": ["a", 1, null, {"x": [1]}], "type": ["string", "object"]})",
             {R"("a")", R"({"x": [1]})"}, {"1", "null", R"("b")"});
  ExpectFits(R"({"const": "x\"y"})", {R"("x\"y")"}, {R"("xy")"});
}

TEST(SchemaTest, ReferencesMayRecur) {
  ExpectFits(R"({"$defs": {"tree": {"type": "object", "properties": {"left": {"$ref":
                 "#/$defs/tree"}, "v": {"type": "integer"}}, "required": ["v"],
                 "additionalProperties": false}}, "$ref": "#/$defs/tree"})",
             {R"({"v": 1})", R"({"left": {"left": {"v": 3}, "v": 2}, "v": 1})"},
             {R"({"left": {}, "v": 1})"});
}

TEST(SchemaTest, CombinationsAreExact) {
  ExpectFits(R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}},
                 {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}, "required": ["b"]}]})",
             {R"({"a": 3, "b": null})"}, {R"({"a": 2, "b": null})", R"({"a": 3})"});
  ExpectFits(R"({"oneOf": [{"type": "integer", "maximum": 12}, {"type": "integer",
                 "minimum": 10}]})",
             {"3", "13"}, {"12", "10", "3.5"});
  ExpectFits(R"({"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false,
                 "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
             {R"({"a": 1})", R"({"b": 1})"}, {"{}", R"({"a": 1, "b": 1})"});
  ExpectFits(R"({"type": "string", "not": {"enum": ["a", "b"]}})", {R"("c")", R"("aa")"},
             {R"("a")", "1"});
  ExpectFits(R"({"type": "object", "properties": {"k": {"type": "string"}, "n": {}},
                 "required": ["k"], "additionalProperties": false,
                 "if": {"properties": {"k": {"const": "x"}}}, "then": {"required": ["n"]}})",
             {R"({"k": "x", "n": 1})", R"({"k": "y"})"}, {R"({"k": "x"})"});
  ExpectFits(R"({"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false,
                 "dependencies": {"a": ["b"]}})",
             {"{}", R"({"b": 1})", R"({"a": 1, "b": 1})"}, {R"({"a": 1})"});
}

TEST(SchemaTest, WhatIsNotSupportedIsNamed) {
  const auto error_of = [](const char* schema) { return Checker::Schema(schema).error(); };
  for (const char* keywords : {R"("items": {"type": "string"})", R"("prefixItems": [{"const": 1}])",
                               R"("items": {"enum": [1, 2]}, "contains": {"const": 1})"}) {
    const auto schema = fmt::format(R"({{"type": "array", "uniqueItems": true, {}}})", keywords);
    EXPECT_NE(error_of(schema.c_str()).find("uniqueItems"), std::string::npos);
  }
  EXPECT_NE(error_of(R"({"unevaluatedProperties": false})").find("unevaluatedProperties"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"$ref": "http://example.com/x"})").find("$ref"), std::string::npos);
  EXPECT_NE(error_of(R"({"type": "int"})").find("\"int\""), std::string::npos);
  EXPECT_NE(error_of(R"({"type": "integer", "minimum": 3, "maximum": 2})").find("no text"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"$ref": "#"})").find("no text"), std::string::npos);
  EXPECT_NE(error_of("{").find("not JSON"), std::string::npos);
}

TEST(SchemaTest, LimitsAreNamed) {
  std::string cases;  // six to the power of twelve
  for (int i = 0; i < 12; ++i) {
    cases += i == 0 ? R"({"anyOf": [)" : R"(, {"anyOf": [)";
    for (int j = 0; j < 6; ++j) {
      cases += fmt::format(R"({}{{"required": ["p{}_{}"]}})", j == 0 ? "" : ", ", i, j);
    }
    cases += "]}";
  }
  const Checker combined = Checker::Schema(fmt::format(R"({{"allOf": [{}]}})", cases).c_str());
  EXPECT_NE(combined.error().find("more than 3000"), std::string::npos) << combined.error();
  const Checker counted = Checker::Schema(
      R"({"type": "object", "additionalProperties": true, "minProperties": 30000})");
  EXPECT_NE(counted.error().find("more than 20000"), std::string::npos) << counted.error();
}

TEST(ConstraintTest, ToolCallsAreGemmasSyntax) {
  const Checker checker({.kind = Constraint::Kind::kToolCalls,
                         .tools = {{.name = "f", .parameters = R"({"type": "object", "properties": {
                                        "b": {"type": "string"}, "A": {"type": "array", "items":
                                        {"type": "integer"}}, "c": {"enum": ["x", "y"]}},
                                        "required": ["A", "b"]})"},
                                   {.name = "now", .parameters = ""}},
                         .must_call = true});
  EXPECT_EQ(checker.error(), "");
  EXPECT_TRUE(checker.Fits("<call>call:f{A:[1,2],b:<q>any \"text\" {<q>}<end>"));
  EXPECT_TRUE(checker.Fits("<call>call:f{A:[],b:<q><q>,c:<q>x<q>}<end><call>call:now{}<end>"));
  EXPECT_FALSE(checker.Fits("<call>call:f{b:<q><q>,A:[]}<end>"));
  EXPECT_FALSE(checker.Fits("<call>call:f{A:[1, 2],b:<q><q>}<end>"));
  EXPECT_FALSE(checker.Fits("<call>call:f{A:[],b:<q><q>,c:<q>z<q>}<end>"));
  EXPECT_FALSE(checker.Fits("<call>call:g{}<end>"));
  EXPECT_FALSE(checker.Fits("text"));
  EXPECT_FALSE(checker.Fits(""));
}

TEST(ConstraintTest, FreeTextMayHoldCalls) {
  const Checker checker({.kind = Constraint::Kind::kToolCalls,
                         .tools = {{.name = "now", .parameters = ""}},
                         .many_calls = false});
  EXPECT_TRUE(checker.Fits("just text"));
  EXPECT_TRUE(checker.Fits("text <call>call:now{}<end>"));
  EXPECT_FALSE(checker.Fits("text <call>call:no"));
  EXPECT_FALSE(checker.Fits("<call>call:now{}<end><call>call:now{}<end>"));
}

TEST(ConstraintTest, ThoughtsComeFirst) {
  Constraint constraint = {.kind = Constraint::Kind::kChoice, .choices = {"yes", "no"}};
  constraint.thought = Constraint::Thought::kMayOpen;
  const Checker may(constraint);
  EXPECT_TRUE(may.Fits("yes"));
  EXPECT_TRUE(may.Fits("<think>thought\nany {text}<end-thought>no"));
  EXPECT_FALSE(may.Fits("<think>no"));
  constraint.thought = Constraint::Thought::kIsOpen;
  const Checker open(constraint);
  EXPECT_TRUE(open.Fits("any<end-thought>no"));
  EXPECT_FALSE(open.Fits("no"));
}

TEST(ConstraintTest, ThoughtsEndAtTheirLimit) {
  Constraint constraint = {.kind = Constraint::Kind::kChoice,
                           .choices = {"yes", "no"},
                           .thought = Constraint::Thought::kMayOpen,
                           .max_thought_tokens = 3};
  const Checker may(constraint);
  EXPECT_TRUE(may.Fits("<think>abc<end-thought>no"));
  EXPECT_TRUE(may.Fits("<think><end-thought>no"));
  EXPECT_TRUE(may.Fits("no"));
  EXPECT_FALSE(may.Fits("<think>abcd<end-thought>no"));
  constraint.thought = Constraint::Thought::kIsOpen;
  constraint.max_thought_tokens = 0;
  const Checker open(constraint);
  EXPECT_TRUE(open.Fits("<end-thought>no"));
  EXPECT_FALSE(open.Fits("a<end-thought>no"));
}

TEST(ConstraintTest, ALimitOfThoughtsLeavesTheRestFree) {
  const Checker checker({.kind = Constraint::Kind::kAnything, .max_thought_tokens = 2});
  EXPECT_TRUE(checker.Fits("any<q>thing<call>\xFF"));
  EXPECT_TRUE(checker.Fits("<think>ab<end-thought>any length"));
  EXPECT_FALSE(checker.Fits("<think>abc"));
  EXPECT_FALSE(checker.Fits("<think>ab"));  // It must end before the answer does.
  EXPECT_TRUE(checker.Fits("<think>a<end-thought>x<think>b<end-thought>"));
  EXPECT_FALSE(checker.Fits("<think>a<end-thought>x<think>bc<end-thought>"));
}

TEST(ConstraintTest, AMatcherGoesBackIntoAThought) {
  const auto grammar =
      Compile({.kind = Constraint::Kind::kAnything, .max_thought_tokens = 2}, ByteContext());
  ASSERT_TRUE(grammar.ok());
  Matcher matcher(*grammar);
  for (const int32_t token : Tokens("x<think>ab")) ASSERT_TRUE(*matcher.Accept(token));
  EXPECT_EQ(*matcher.OnlyAllowedToken(), kThinkEnd);
  std::vector<uint32_t> words((kNumTokens + 31) / 32);
  ASSERT_TRUE(matcher.FillMask(words).ok());
  for (int32_t token = 0; token < kNumTokens; ++token) {
    EXPECT_EQ(words[token / 32] >> (token % 32) & 1, token == kThinkEnd ? 1u : 0u) << token;
  }
  ASSERT_TRUE(*matcher.Accept(kThinkEnd));
  matcher.Rollback(2);  // the end and "b"
  ASSERT_TRUE(matcher.FillMask(words).ok());
  for (int32_t token = 0; token < kNumTokens; ++token) {
    EXPECT_EQ(words[token / 32] >> (token % 32) & 1, 1u) << token;
  }
  EXPECT_EQ(words.back() >> (kNumTokens % 32), 0u);  // no bits behind the vocabulary
  EXPECT_TRUE(*matcher.Accept('c'));
  EXPECT_FALSE(*matcher.Accept('d'));
}

TEST(ConstraintTest, ToolsMayBeCalledInPlaceOfAForm) {
  const Checker checker({.kind = Constraint::Kind::kJsonSchema,
                         .text = R"({"type": "integer"})",
                         .tools = {{.name = "f", .parameters = R"({"properties": {"x": {"type":
                                   "integer"}}, "required": ["x"], "additionalProperties": false})"}},
                         .many_calls = false});
  EXPECT_TRUE(checker.Fits("12"));
  EXPECT_TRUE(checker.Fits("<call>call:f{x:1}<end>"));
  EXPECT_FALSE(checker.Fits("<call>call:f{x:1}<end><call>call:f{x:1}<end>"));
  EXPECT_FALSE(checker.Fits("12<call>call:f{x:1}<end>"));
  EXPECT_FALSE(checker.Fits("text"));
}

TEST(ConstraintTest, RegexesJsonObjectsAndTags) {
  const Checker regex({.kind = Constraint::Kind::kRegex, .text = "\\d{3}-[a-f]+"});
  EXPECT_TRUE(regex.Fits("123-abc"));
  EXPECT_FALSE(regex.Fits("x123-abc"));
  const Checker object({.kind = Constraint::Kind::kJsonObject});
  EXPECT_TRUE(object.Fits(R"({"a": [1, {}]})"));
  EXPECT_FALSE(object.Fits("[1]"));
  const Checker tag({.kind = Constraint::Kind::kStructuralTag,
                     .text = R"({"structures": [{"begin": "<f=a>", "schema": {"type": "integer"},
                             "end": "</f>"}], "triggers": ["<f="]})"});
  EXPECT_TRUE(tag.Fits("text < f <f=a>12</f> more"));
  EXPECT_FALSE(tag.Fits("text <f=b>12</f>"));
  EXPECT_FALSE(tag.Fits("text <f=a>x</f>"));
}

TEST(EbnfTest, GbnfRules) {
  const Checker checker = Checker::Ebnf(R"gbnf(
# a list of sums
root ::= sum ("," ws sum)*
sum  ::= sum [+-] number | number
number ::= [0-9]{1,3} | "\x78" | (
    "(" sum ")"
)
ws ::= " "?
)gbnf");
  EXPECT_EQ(checker.error(), "");
  EXPECT_TRUE(checker.Fits("1+22-x, (3+4)"));
  EXPECT_FALSE(checker.Fits("1+"));
  EXPECT_FALSE(checker.Fits("1234"));
  EXPECT_NE(Checker::Ebnf("root ::= a\na ::= b \"x\"\nb ::= a | \"y\"\n").error().find("left"),
            std::string::npos);
  EXPECT_NE(Checker::Ebnf("root ::= missing").error().find("missing"), std::string::npos);
  EXPECT_NE(Checker::Ebnf("root ::= \"a\"\nx ::= [a").error().find("line 2"), std::string::npos);
}

TEST(EbnfTest, LarkRules) {
  const Checker checker = Checker::Ebnf(R"(
start: greeting ["," NAME] "!"~1..2
?greeting: "hello"i | "hi"   // comment
         | "a".."c"
NAME: /[A-Z][a-z]+/
%import common.INT
)");
  EXPECT_EQ(checker.error(), "");
  EXPECT_TRUE(checker.Fits("HeLLo,Bob!!"));
  EXPECT_TRUE(checker.Fits("b!"));
  EXPECT_FALSE(checker.Fits("hi,bob!"));
  EXPECT_FALSE(checker.Fits("hi"));
}

}  // namespace
}  // namespace lapidary::grammar
