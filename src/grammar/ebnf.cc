#include "grammar/ebnf.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/code_points.h"
#include "grammar/regex_syntax.h"
#include "grammar/text_cursor.h"
#include "text/utf8.h"

namespace lapidary::grammar {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 20;
constexpr int kMaxNesting = 100;
constexpr uint32_t kMaxRepeat = 1'000'000;

// Terminals of Lark's common library that grammars import.
const std::unordered_map<std::string_view, std::string_view> kLarkCommon = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"NUMBER", "[0-9]+(?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\\.[0-9]+(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER",
     "[+-]?(?:[0-9]+(?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\\.[0-9]+(?:[eE][+-]?[0-9]+)?)"},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\.)*\""},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
};

class EbnfParser : private TextCursor {
 public:
  EbnfParser(GrammarBuilder* builder, std::string_view text)
      : TextCursor(text),
        builder_(*builder),
        pool_(builder->regex()),
        is_lark_(text.find("::=") == std::string_view::npos) {}

  Result<NodeId> Parse() {
    if (text_.size() > kMaxTextBytes) return MakeError("the grammar has more than 1 MiB of text");
    SkipBlanks(/*lines=*/true);
    while (at_ < text_.size()) {
      RETURN_IF_ERROR(is_lark_ && text_[at_] == '%' ? ParseDirective() : ParseRule());
      SkipBlanks(/*lines=*/true);
    }
    const char* start = is_lark_ ? "start" : "root";
    if (!rules_.contains(start)) {
      return MakeError("the grammar has no rule \"{}\" to begin with", start);
    }
    for (const auto& [name, rule] : rules_) {
      if (!rule.is_defined) {
        return MakeError("the grammar uses the rule \"{}\", which it does not define", name);
      }
    }
    return rules_[start].node;
  }

 private:
  struct Rule {
    NodeId node;
    bool is_defined = false;
  };
  // One alternative; `first_rule` is the rule it begins with, if it begins with a bare one.
  struct Alternative {
    std::vector<NodeId> items;
    std::optional<NodeId> first_rule;
  };

  Error Fail(std::string_view what) const {
    const size_t line = 1 + std::ranges::count(text_.substr(0, std::min(at_, text_.size())), '\n');
    return MakeError("line {} of the grammar: {}", line, what);
  }
  void SkipBlanks(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else if (is_lark_ ? text_.substr(at_).starts_with("//") : c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else {
        return;
      }
    }
  }
  static bool IsNameByte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  }
  std::string TakeName() {
    const size_t begin = at_;
    while (IsNameByte(Peek()) && !(is_lark_ && Peek() == '-')) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  NodeId RuleNode(const std::string& name) {
    const auto [found, is_new] = rules_.try_emplace(name);
    if (is_new) found->second.node = builder_.Forward(name);
    return found->second.node;
  }

  Status ParseDirective() {
    if (!Take("%import")) return Fail("this % directive is not supported (only %import is)");
    SkipBlanks(false);
    Take("common.");
    std::vector<std::string> names;
    const bool is_list = Take("(");
    do {
      SkipBlanks(false);
      names.push_back(TakeName());
      SkipBlanks(false);
    } while (is_list && Take(","));
    if (is_list && !Take(")")) return Fail("a ) is missing");
    std::string alias;
    if (Take("->")) {
      SkipBlanks(false);
      alias = TakeName();
    }
    for (const std::string& name : names) {
      const auto found = kLarkCommon.find(name);
      if (found == kLarkCommon.end()) {
        return Fail(fmt::format("%import of \"{}\", which is not supported", name));
      }
      ASSIGN_OR_RETURN(const RegexId regex,
                       ParseRegex(&pool_, found->second, RegexScope::kWhole, TextEncoding::kUtf8));
      RETURN_IF_ERROR(Define(alias.empty() ? name : alias, builder_.Terminal(regex)));
    }
    return {};
  }

  Status Define(const std::string& name, NodeId meaning) {
    const NodeId node = RuleNode(name);
    Rule& rule = rules_[name];
    if (rule.is_defined) return Fail(fmt::format("the rule \"{}\" is defined twice", name));
    rule.is_defined = true;
    builder_.Resolve(node, meaning);
    return {};
  }

  Status ParseRule() {
    if (is_lark_) {
      Take("?");
      Take("!");
    }
    const std::string name = TakeName();
    if (name.empty()) return Fail("a rule's name is expected");
    const NodeId self = RuleNode(name);
    SkipBlanks(false);
    if (is_lark_ && Take(".")) {  // a priority: which reading counts, not which texts
      while (Peek() >= '0' && Peek() <= '9') ++at_;
      SkipBlanks(false);
    }
    if (!Take(is_lark_ ? ":" : "::=")) {
      return Fail(
          fmt::format("\"{}\" is expected behind the name \"{}\"", is_lark_ ? ":" : "::=", name));
    }
    ASSIGN_OR_RETURN(const std::vector<Alternative> alternatives, ParseAlternatives(0));
    // self ::= self rest | first: first, then any number of rests.
    std::vector<NodeId> first;
    std::vector<NodeId> rests;
    for (const Alternative& alternative : alternatives) {
      if (alternative.first_rule == self && alternative.items.size() > 1) {
        rests.push_back(builder_.Sequence(std::span(alternative.items).subspan(1)));
      } else {
        first.push_back(builder_.Sequence(alternative.items));
      }
    }
    NodeId meaning = builder_.Choice(first);
    if (!rests.empty()) {
      meaning =
          builder_.Sequence({meaning, builder_.Repeat(builder_.Choice(rests), 0, kUnbounded)});
    }
    return Define(name, meaning);
  }

  // Where a rule goes on: on its line, inside brackets, or on a line that begins with |.
  bool AtRuleEnd(int depth) {
    SkipBlanks(/*lines=*/depth > 0);
    if (at_ >= text_.size()) return true;
    if (Peek() != '\n') return false;
    const size_t line_end = at_;
    SkipBlanks(/*lines=*/true);
    if (Peek() == '|') return false;
    at_ = line_end;
    return true;
  }

  Result<std::vector<Alternative>> ParseAlternatives(int depth) {
    if (depth > kMaxNesting) return Fail("brackets nest deeper than 100");
    std::vector<Alternative> alternatives;
    do {
      SkipBlanks(/*lines=*/true);
      alternatives.emplace_back();
      Alternative& alternative = alternatives.back();
      while (!AtRuleEnd(depth) && Peek() != '|' && Peek() != ')' && Peek() != ']') {
        if (is_lark_ && Take("->")) {  // an alias of the tree
          SkipBlanks(false);
          TakeName();
          continue;
        }
        RETURN_IF_ERROR(ParseItem(depth, &alternative));
      }
    } while (Take("|"));
    return alternatives;
  }

  Result<NodeId> ParseBracket(int depth, std::string_view close) {
    ASSIGN_OR_RETURN(const std::vector<Alternative> alternatives, ParseAlternatives(depth + 1));
    SkipBlanks(true);
    if (!Take(close)) return Fail(fmt::format("a {} is missing", close));
    std::vector<NodeId> nodes;
    for (const Alternative& alternative : alternatives) {
      nodes.push_back(builder_.Sequence(alternative.items));
    }
    return builder_.Choice(nodes);
  }

  Status ParseItem(int depth, Alternative* alternative) {
    std::optional<NodeId> rule;
    NodeId node;
    if (Take("(")) {
      ASSIGN_OR_RETURN(node, ParseBracket(depth, ")"));
    } else if (is_lark_ && Take("[")) {
      ASSIGN_OR_RETURN(node, ParseBracket(depth, "]"));
      node = builder_.Optional(node);
    } else if (Peek() == '"') {
      ASSIGN_OR_RETURN(node, ParseLiteral());
    } else if (!is_lark_ && Take("[")) {
      ASSIGN_OR_RETURN(node, ParseClass());
    } else if (!is_lark_ && Take(".")) {
      node = builder_.Terminal(AnyCharacter(&pool_, TextEncoding::kUtf8));
    } else if (Peek() == '/') {
      ASSIGN_OR_RETURN(node, ParsePattern());
    } else if (IsNameByte(Peek())) {
      node = RuleNode(TakeName());
      rule = node;
    } else {
      return Fail(fmt::format("\"{}\" is not expected here", text_.substr(at_, 1)));
    }
    uint32_t min = 1;
    uint32_t max = 1;
    if (Take("?")) {
      min = 0;
    } else if (Take("*")) {
      min = 0;
      max = kUnbounded;
    } else if (Take("+")) {
      max = kUnbounded;
    } else if (!is_lark_ && Take("{")) {
      RETURN_IF_ERROR(ParseCounts(",", &min, &max));
      if (!Take("}")) return Fail("a } is missing");
    } else if (is_lark_ && Take("~")) {
      RETURN_IF_ERROR(ParseCounts("..", &min, &max));
    }
    if (min != 1 || max != 1) {
      node = builder_.Repeat(node, min, max);
      rule.reset();
    }
    if (alternative->items.empty()) alternative->first_rule = rule;
    alternative->items.push_back(node);
    return {};
  }

  std::optional<uint32_t> TakeNumber() {
    SkipBlanks(false);
    const size_t begin = at_;
    uint64_t number = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      number = std::min<uint64_t>(number * 10 + (Peek() - '0'), 2 * kMaxRepeat);
      ++at_;
    }
    SkipBlanks(false);
    if (begin == at_) return std::nullopt;
    return static_cast<uint32_t>(number);
  }

  Status ParseCounts(std::string_view separator, uint32_t* min, uint32_t* max) {
    const std::optional<uint32_t> low = TakeNumber();
    const bool has_separator = Take(separator);
    if (!low && !has_separator) return Fail("a count is expected");
    *min = low.value_or(0);
    *max = has_separator ? TakeNumber().value_or(kUnbounded) : *min;
    if (*min > kMaxRepeat || (*max > kMaxRepeat && *max != kUnbounded)) {
      return Fail("a repetition of more than 1,000,000 times");
    }
    if (*min > *max) return Fail("the counts of a repetition are out of order");
    return {};
  }

  // One character of a literal or class, after its backslash if it has one.
  Result<uint32_t> TakeCharacter() {
    if (!Take("\\")) {
      if (at_ >= text_.size()) return Fail("a text does not end");
      const Utf8Char character = ReadUtf8(text_.substr(at_));
      if (character.status != Utf8Status::kComplete) return Fail("malformed UTF-8");
      at_ += character.num_bytes;
      return character.code_point;
    }
    const char escape = Peek();
    ++at_;
    const auto hex = [&](int num_digits) -> Result<uint32_t> {
      uint32_t value = 0;
      for (int i = 0; i < num_digits; ++i, ++at_) {
        const char digit = static_cast<char>(Peek() | 32);
        if (Peek() >= '0' && Peek() <= '9') {
          value = value * 16 + (Peek() - '0');
        } else if (digit >= 'a' && digit <= 'f') {
          value = value * 16 + (digit - 'a' + 10);
        } else {
          return Fail("hexadecimal digits are missing behind an escape");
        }
      }
      if (value > kMaxCodePoint) return Fail("an escape beyond Unicode");
      return value;
    };
    switch (escape) {
      case 'n':
        return uint32_t{'\n'};
      case 't':
        return uint32_t{'\t'};
      case 'r':
        return uint32_t{'\r'};
      case 'f':
        return uint32_t{'\f'};
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case '\0':
        return Fail("a text does not end");
      default:
        return static_cast<uint32_t>(static_cast<uint8_t>(escape));
    }
  }

  Result<NodeId> ParseLiteral() {
    ++at_;
    std::vector<uint32_t> characters;
    while (!Take("\"")) {
      if (Peek() == '\n') return Fail("a text does not end");
      ASSIGN_OR_RETURN(const uint32_t character, TakeCharacter());
      characters.push_back(character);
    }
    const bool ignores_case = is_lark_ && Peek() == 'i' && !IsNameByte(Peek(1)) && Take("i");
    if (is_lark_ && characters.size() == 1 && Take("..")) {  // "a".."z"
      if (!Take("\"")) return Fail("a range needs a character at its end");
      ASSIGN_OR_RETURN(const uint32_t last, TakeCharacter());
      if (!Take("\"")) return Fail("a range needs a character at its end");
      return Characters({{characters[0], last}});
    }
    RegexId literal = RegexPool::kEmpty;
    for (size_t i = characters.size(); i-- > 0;) {
      const uint32_t c = characters[i];
      CodePointSet set = {{c, c}};
      if (ignores_case && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
        set.Add(c ^ 32, c ^ 32);
      }
      literal = pool_.Concat(OneOf(&pool_, set, TextEncoding::kUtf8), literal);
    }
    return builder_.Terminal(literal);
  }

  NodeId Characters(const CodePointSet& set) {
    return builder_.Terminal(OneOf(&pool_, set, TextEncoding::kUtf8));
  }

  Result<NodeId> ParseClass() {
    const bool is_negated = Take("^");
    CodePointSet set;
    while (!Take("]")) {
      if (Peek() == '\n') return Fail("a ] is missing");
      ASSIGN_OR_RETURN(const uint32_t low, TakeCharacter());
      uint32_t high = low;
      if (Peek() == '-' && Peek(1) != ']') {
        ++at_;
        ASSIGN_OR_RETURN(high, TakeCharacter());
        if (low > high) return Fail("a character range is out of order");
      }
      set.Add(low, high);
    }
    return Characters(is_negated ? set.Complement() : set);
  }

  Result<NodeId> ParsePattern() {
    const size_t begin = ++at_;
    bool in_class = false;
    while (at_ < text_.size() && (in_class || text_[at_] != '/')) {
      if (text_[at_] == '\n') return Fail("a regular expression does not end");
      if (text_[at_] == '[') in_class = true;
      if (text_[at_] == ']') in_class = false;
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    if (at_ >= text_.size()) return Fail("a regular expression does not end");
    const std::string_view pattern = text_.substr(begin, at_ - begin);
    ++at_;
    if (Peek() == 'i' || Peek() == 's' || Peek() == 'm' || Peek() == 'x') {
      return Fail("flags of regular expressions are not supported");
    }
    ASSIGN_OR_RETURN(const RegexId regex,
                     ParseRegex(&pool_, pattern, RegexScope::kWhole, TextEncoding::kUtf8));
    return builder_.Terminal(regex);
  }

  GrammarBuilder& builder_;
  RegexPool& pool_;
  bool is_lark_;
  std::unordered_map<std::string, Rule> rules_;
};

}  // namespace

Result<NodeId> AddEbnf(GrammarBuilder* builder, std::string_view text) {
  return EbnfParser(builder, text).Parse();
}

}  // namespace lapidary::grammar
