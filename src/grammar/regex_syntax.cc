#include "grammar/regex_syntax.h"

#include <optional>
#include <string>
#include <vector>

#include "grammar/text_cursor.h"
#include "text/utf8.h"

namespace lapidary::grammar {
namespace {

constexpr int kMaxNesting = 100;
constexpr size_t kMaxPatternBytes = 65'536;
constexpr uint32_t kMaxRepeat = 1'000'000;

const CodePointSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const CodePointSet kDigitSet = {{'0', '9'}};
const CodePointSet kWordSet = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpaceSet = {
    {'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

struct Ast {
  enum Kind { kSet, kSequence, kChoice, kRepeat, kBegin, kEnd, kAhead, kNotAhead };
  Kind kind;
  CodePointSet set = {};
  std::vector<uint32_t> children = {};
  uint32_t min = 0;
  uint32_t max = 0;
  bool has_assertion = false;  // ^, $ or look-ahead inside
  bool may_be_empty = false;   // matches the empty text, or only asserts
};

class Parser : private TextCursor {
 public:
  explicit Parser(std::string_view pattern) : TextCursor(pattern) {}

  Result<uint32_t> Parse() {
    if (text_.size() > kMaxPatternBytes) return Fail("has more than 65,536 bytes");
    ASSIGN_OR_RETURN(const uint32_t root, ParseChoice(0));
    if (at_ < text_.size()) return Fail("has an unmatched )");
    return root;
  }
  const std::vector<Ast>& nodes() const { return nodes_; }

 private:
  Error Fail(std::string_view what) const {
    return MakeError("the regular expression {} {}", Quoted(), what);
  }
  std::string Quoted() const {
    return fmt::format("\"{}\"", text_.size() <= 80 ? text_ : text_.substr(0, 80));
  }

  uint32_t Add(Ast node) {
    switch (node.kind) {
      case Ast::kSet:
        break;
      case Ast::kBegin:
      case Ast::kEnd:
      case Ast::kAhead:
      case Ast::kNotAhead:
        node.has_assertion = true;
        node.may_be_empty = true;
        break;
      case Ast::kSequence:
        node.may_be_empty = true;
        for (uint32_t child : node.children) node.may_be_empty &= nodes_[child].may_be_empty;
        break;
      case Ast::kChoice:
        for (uint32_t child : node.children) node.may_be_empty |= nodes_[child].may_be_empty;
        break;
      case Ast::kRepeat:
        node.may_be_empty = node.min == 0 || nodes_[node.children[0]].may_be_empty;
        break;
    }
    for (uint32_t child : node.children) node.has_assertion |= nodes_[child].has_assertion;
    nodes_.push_back(std::move(node));
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  uint32_t AddSet(CodePointSet set) { return Add({.kind = Ast::kSet, .set = std::move(set)}); }

  Result<uint32_t> ParseChoice(int depth) {
    if (depth > kMaxNesting) return Fail("nests groups deeper than 100");
    std::vector<uint32_t> branches;
    do {
      std::vector<uint32_t> items;
      while (!AtEnd() && Peek() != '|' && Peek() != ')') {
        ASSIGN_OR_RETURN(const uint32_t item, ParseItem(depth));
        items.push_back(item);
      }
      branches.push_back(items.size() == 1 ? items[0]
                                           : Add({.kind = Ast::kSequence, .children = items}));
    } while (Take("|"));
    if (branches.size() == 1) return branches[0];
    return Add({.kind = Ast::kChoice, .children = branches});
  }

  Result<uint32_t> ParseItem(int depth) {
    ASSIGN_OR_RETURN(const uint32_t item, ParseAtom(depth));
    uint32_t min = 0;
    uint32_t max = RegexPool::kUnbounded;
    if (Take("?")) {
      max = 1;
    } else if (Take("+")) {
      min = 1;
    } else if (!Take("*")) {
      ASSIGN_OR_RETURN(const bool is_counted, ParseCounts(&min, &max));
      if (!is_counted) return item;
    }
    Take("?");  // lazy: the same language
    return Add({.kind = Ast::kRepeat, .children = {item}, .min = min, .max = max});
  }

  // {n}, {n,} or {n,m}; any other brace is a character, as browsers read it.
  Result<bool> ParseCounts(uint32_t* min, uint32_t* max) {
    if (Peek() != '{') return false;
    const size_t start = at_;
    ++at_;
    const std::optional<uint32_t> low = ParseNumber();
    std::optional<uint32_t> high = low;
    if (low && Take(",")) high = Peek() == '}' ? RegexPool::kUnbounded : ParseNumber();
    if (!low || !high || !Take("}")) {
      at_ = start;
      return false;
    }
    if (*low > kMaxRepeat || (*high > kMaxRepeat && *high != RegexPool::kUnbounded)) {
      return Fail("repeats more than 1,000,000 times");
    }
    if (*low > *high) return Fail("has a repetition whose counts are out of order");
    *min = *low;
    *max = *high;
    return true;
  }
  std::optional<uint32_t> ParseNumber() {
    const size_t start = at_;
    uint64_t number = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      number = std::min<uint64_t>(number * 10 + (Peek() - '0'), 2 * kMaxRepeat);
      ++at_;
    }
    if (at_ == start) return std::nullopt;
    return static_cast<uint32_t>(number);
  }

  Result<uint32_t> ParseAtom(int depth) {
    if (Take("(")) return ParseGroup(depth);
    if (Take("[")) return ParseClass();
    if (Take(".")) return AddSet(kLineEnds.Complement());
    if (Take("^")) return Add({.kind = Ast::kBegin});
    if (Take("$")) return Add({.kind = Ast::kEnd});
    if (Take("\\")) {
      ASSIGN_OR_RETURN(CodePointSet set, ParseEscape(/*in_class=*/false));
      return AddSet(std::move(set));
    }
    if (Peek() == '*' || Peek() == '+' || Peek() == '?') {
      return Fail(fmt::format("has nothing to repeat before {}", Peek()));
    }
    ASSIGN_OR_RETURN(const uint32_t code_point, TakeCharacter());
    return AddSet({{code_point, code_point}});
  }

  Result<uint32_t> ParseGroup(int depth) {
    Ast::Kind kind = Ast::kSequence;
    if (Take("?")) {
      if (Take("=")) {
        kind = Ast::kAhead;
      } else if (Take("!")) {
        kind = Ast::kNotAhead;
      } else if (Take("<=") || Take("<!")) {
        return Fail("uses look-behind, which is not supported");
      } else if (Take("<") || Take("P<")) {
        while (!AtEnd() && Peek() != '>') ++at_;
        if (!Take(">")) return Fail("has a group name without an end");
      } else if (!Take(":")) {
        return Fail("uses a group option that ECMA-262 does not have");
      }
    }
    ASSIGN_OR_RETURN(const uint32_t inner, ParseChoice(depth + 1));
    if (!Take(")")) return Fail("has an unmatched (");
    if (kind == Ast::kSequence) return inner;
    return Add({.kind = kind, .children = {inner}});
  }

  Result<uint32_t> ParseClass() {
    const bool is_negated = Take("^");
    CodePointSet set;
    while (true) {
      if (AtEnd()) return Fail("has an unmatched [");
      if (Take("]")) break;
      std::optional<uint32_t> low;
      ASSIGN_OR_RETURN(CodePointSet part, ParseClassAtom(&low));
      if (low && Peek() == '-' && Peek(1) != ']' && at_ + 1 < text_.size()) {
        const size_t dash = at_;
        ++at_;
        std::optional<uint32_t> high;
        ASSIGN_OR_RETURN(const CodePointSet other, ParseClassAtom(&high));
        if (high) {
          if (*low > *high) return Fail("has a character range out of order");
          set.Add(*low, *high);
          continue;
        }
        at_ = dash;  // [a-\d]: the dash is a character
      }
      set.Add(part);
    }
    return AddSet(is_negated ? set.Complement() : std::move(set));
  }

  // One character (then also in *single) or one escaped set.
  Result<CodePointSet> ParseClassAtom(std::optional<uint32_t>* single) {
    if (Take("\\")) {
      ASSIGN_OR_RETURN(CodePointSet set, ParseEscape(/*in_class=*/true));
      const std::vector<CodePointRange> ranges = set.Ranges();
      if (ranges.size() == 1 && ranges[0].low == ranges[0].high) *single = ranges[0].low;
      return set;
    }
    ASSIGN_OR_RETURN(const uint32_t code_point, TakeCharacter());
    *single = code_point;
    return CodePointSet{{code_point, code_point}};
  }

  Result<uint32_t> TakeCharacter() {
    const Utf8Char character = ReadUtf8(text_.substr(at_));
    if (character.status != Utf8Status::kComplete) return Fail("is not well-formed UTF-8");
    at_ += character.num_bytes;
    return character.code_point;
  }

  std::optional<uint32_t> TakeHex(int num_digits) {
    uint32_t value = 0;
    for (int i = 0; i < num_digits; ++i) {
      const char digit = Peek(i);
      if (digit >= '0' && digit <= '9') {
        value = value * 16 + (digit - '0');
      } else if ((digit | 32) >= 'a' && (digit | 32) <= 'f') {
        value = value * 16 + ((digit | 32) - 'a' + 10);
      } else {
        return std::nullopt;
      }
    }
    at_ += num_digits;
    return value;
  }

  static CodePointSet Single(uint32_t code_point) { return {{code_point, code_point}}; }

  Result<CodePointSet> ParseEscape(bool in_class) {
    if (AtEnd()) return Fail("ends with a backslash");
    const char escape = Peek();
    ++at_;
    switch (escape) {
      case 'd':
        return kDigitSet;
      case 'D':
        return kDigitSet.Complement();
      case 'w':
        return kWordSet;
      case 'W':
        return kWordSet.Complement();
      case 's':
        return kSpaceSet;
      case 'S':
        return kSpaceSet.Complement();
      case 't':
        return Single('\t');
      case 'n':
        return Single('\n');
      case 'r':
        return Single('\r');
      case 'f':
        return Single('\f');
      case 'v':
        return Single('\v');
      case '0':
        return Single(0);
      case 'x':
        if (const auto value = TakeHex(2)) return Single(*value);
        return Fail("has a \\x without two hexadecimal digits");
      case 'u':
        return ParseUnicodeEscape();
      case 'c':
        if ((Peek() | 32) >= 'a' && (Peek() | 32) <= 'z') return Single(text_[at_++] & 31);
        return Fail("has a \\c without a letter");
      case 'b':
        if (in_class) return Single('\b');
        return Fail("uses the word boundary \\b, which is not supported");
      case 'B':
        return Fail("uses \\B, which is not supported");
      case 'p':
      case 'P':
        return Fail("uses a Unicode property (\\p), which is not supported");
      case 'k':
        return Fail("uses a back reference, which is not supported");
      default:
        break;
    }
    if (escape >= '1' && escape <= '9')
      return Fail("uses a back reference, which is not supported");
    --at_;
    ASSIGN_OR_RETURN(const uint32_t code_point, TakeCharacter());
    return Single(code_point);
  }

  Result<CodePointSet> ParseUnicodeEscape() {
    if (Take("{")) {
      uint32_t value = 0;
      while (const auto digit = TakeHex(1)) value = std::min(value * 16 + *digit, 0x200000u);
      if (!Take("}") || value > kMaxCodePoint) return Fail("has a malformed \\u{...}");
      return Single(value);
    }
    const auto value = TakeHex(4);
    if (!value) return Fail("has a \\u without four hexadecimal digits");
    if (*value >= 0xD800 && *value < 0xDC00 && Peek() == '\\' && Peek(1) == 'u') {
      const size_t start = at_;
      at_ += 2;
      const auto low = TakeHex(4);
      if (low && *low >= 0xDC00 && *low < 0xE000) {
        return Single(0x10000 + ((*value - 0xD800) << 10) + (*low - 0xDC00));
      }
      at_ = start;
    }
    return Single(*value);
  }

  std::vector<Ast> nodes_;
};

// Turns the tree into a language, from the right: `rest` is all that may follow, to the end of the
// text, so that look-ahead and $ can be intersected with it.
class Translator {
 public:
  Translator(RegexPool* pool, const std::vector<Ast>& nodes, TextEncoding encoding)
      : pool_(*pool), nodes_(nodes), encoding_(encoding) {}

  const char* error() const { return error_; }

  RegexId Follow(uint32_t id, RegexId rest, bool at_begin) {
    const Ast& node = nodes_[id];
    switch (node.kind) {
      case Ast::kSet:
        return pool_.Concat(OneOf(&pool_, node.set, encoding_), rest);
      case Ast::kSequence: {
        // What follows a child depends on whether the child leaves us at the begin of the text.
        RegexId rest_at_begin = rest;
        for (size_t i = node.children.size(); i-- > 0;) {
          const uint32_t child = node.children[i];
          if (at_begin) rest_at_begin = FollowAtBegin(child, rest_at_begin, rest);
          rest = Follow(child, rest, /*at_begin=*/false);
        }
        return at_begin ? rest_at_begin : rest;
      }
      case Ast::kChoice: {
        std::vector<RegexId> branches;
        for (uint32_t child : node.children) branches.push_back(Follow(child, rest, at_begin));
        return pool_.Or(branches);
      }
      case Ast::kRepeat: {
        const Ast& child = nodes_[node.children[0]];
        if (!child.has_assertion) {
          const RegexId part = Follow(node.children[0], RegexPool::kEmpty, false);
          return pool_.Concat(pool_.Repeat(part, node.min, node.max), rest);
        }
        if (node.max != 1) {
          error_ = "repeats a group with ^, $ or look-ahead in it, which is not supported";
          return RegexPool::kNothing;
        }
        const RegexId once = Follow(node.children[0], rest, at_begin);
        return node.min == 1 ? once : pool_.Or(once, rest);
      }
      case Ast::kBegin:
        return at_begin ? rest : RegexPool::kNothing;
      case Ast::kEnd:
        return pool_.And(RegexPool::kEmpty, rest);
      case Ast::kAhead:
        return pool_.And(Follow(node.children[0], RegexPool::kAnything, at_begin), rest);
      case Ast::kNotAhead:
        return pool_.And(pool_.Not(Follow(node.children[0], RegexPool::kAnything, at_begin)), rest);
    }
    return RegexPool::kNothing;
  }

 private:
  // `id` at the begin of the text, then `rest_at_begin` if it matched nothing, else `rest`.
  RegexId FollowAtBegin(uint32_t id, RegexId rest_at_begin, RegexId rest) {
    const Ast& node = nodes_[id];
    if (rest_at_begin == rest || !node.may_be_empty) return Follow(id, rest, /*at_begin=*/true);
    if (IsAssertionOnly(node)) return Follow(id, rest_at_begin, /*at_begin=*/true);
    if (node.has_assertion) error_ = "has a ^ behind a group with ^, $ or look-ahead in it";
    return pool_.Or(Follow(id, rest, /*at_begin=*/true), rest_at_begin);
  }

  bool IsAssertionOnly(const Ast& node) const {
    return node.kind == Ast::kBegin || node.kind == Ast::kEnd || node.kind == Ast::kAhead ||
           node.kind == Ast::kNotAhead || (node.kind == Ast::kSequence && node.children.empty());
  }

  RegexPool& pool_;
  const std::vector<Ast>& nodes_;
  TextEncoding encoding_;
  const char* error_ = nullptr;
};

}  // namespace

RegexId AnyCharacter(RegexPool* pool, TextEncoding encoding) {
  return OneOf(pool, CodePointSet::All(), encoding);
}

Result<RegexId> ParseRegex(RegexPool* pool, std::string_view pattern, RegexScope scope,
                           TextEncoding encoding) {
  Parser parser(pattern);
  ASSIGN_OR_RETURN(const uint32_t root, parser.Parse());
  Translator translator(pool, parser.nodes(), encoding);
  RegexId language;
  if (scope == RegexScope::kWhole) {
    language = translator.Follow(root, RegexPool::kEmpty, /*at_begin=*/true);
  } else {
    // Found at the begin of the text, or behind at least one character, where ^ fails.
    const auto behind = [&](uint32_t num_characters, RegexId rest) {
      const RegexId character = AnyCharacter(pool, encoding);
      return pool->Concat(pool->Repeat(character, num_characters, RegexPool::kUnbounded), rest);
    };
    const RegexId later = translator.Follow(root, RegexPool::kAnything, /*at_begin=*/false);
    language = parser.nodes()[root].has_assertion
                   ? pool->Or(translator.Follow(root, RegexPool::kAnything, /*at_begin=*/true),
                              behind(1, later))
                   : behind(0, later);
  }
  if (translator.error() != nullptr) {
    return MakeError("the regular expression \"{}\" {}", pattern.substr(0, 80), translator.error());
  }
  if (pool->limit_error() != nullptr) {
    return MakeError("the regular expression \"{}\" needs {}", pattern.substr(0, 80),
                     pool->limit_error());
  }
  return language;
}

}  // namespace lapidary::grammar
