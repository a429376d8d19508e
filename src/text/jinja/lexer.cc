#include "text/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "text/unicode.h"

namespace lapidary::jinja {
namespace {

std::string NormalizeNewlines(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t offset = 0; offset < source.size(); ++offset) {
    if (source[offset] != '\r') {
      result.push_back(source[offset]);
      continue;
    }
    result.push_back('\n');
    if (offset + 1 < source.size() && source[offset + 1] == '\n') ++offset;
  }
  if (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsNameByte(char c) { return IsNameStart(c) || std::isdigit(static_cast<unsigned char>(c)); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The longest first, so that a prefix never wins.
constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> Run() {
    while (position_ < source_.size()) RETURN_IF_ERROR(LexText());
    tokens_.push_back({Token::Kind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  bool At(std::string_view text) const {
    return std::string_view(source_).substr(position_, text.size()) == text;
  }
  char Peek(size_t ahead = 0) const {
    return position_ + ahead < source_.size() ? source_[position_ + ahead] : '\0';
  }
  void Advance(size_t count) {
    line_ += static_cast<int>(
        std::count(source_.begin() + position_, source_.begin() + position_ + count, '\n'));
    position_ += count;
  }
  void SkipWhitespace() { Advance(SkipSpaces(std::string_view(source_).substr(position_))); }
  void Emit(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }

  // Plain text up to the next tag, then that tag.
  Status LexText() {
    const bool at_line_start = position_ == 0 || source_[position_ - 1] == '\n';
    size_t tag = position_;
    while ((tag = source_.find('{', tag)) != std::string::npos) {
      const char next = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') break;
      ++tag;
    }
    const bool has_tag = tag != std::string::npos;
    if (!has_tag) tag = source_.size();
    std::string_view text(source_.data() + position_, tag - position_);
    if (has_tag) text = StripBeforeTag(text, tag, at_line_start);
    if (!text.empty()) Emit(Token::Kind::kText, std::string(text));
    Advance(tag - position_);
    return has_tag ? LexTag() : Status();
  }

  std::string_view StripBeforeTag(std::string_view text, size_t tag, bool at_line_start) const {
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign == '-') return text.substr(0, EndWithoutSpaces(text));
    if (sign == '+' || source_[tag + 1] == '{') return text;
    const size_t newline = text.rfind('\n');
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_start == 0 && !at_line_start) return text;
    const bool blank = SkipSpaces(text.substr(line_start)) == text.size() - line_start;
    return blank ? text.substr(0, line_start) : text;
  }

  Status LexTag() {
    const char kind = Peek(1);
    if (kind == '#') return SkipComment();
    if (kind == '%' && AtRawTag("raw") != 0) return LexRaw();
    Emit(kind == '{' ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin,
         source_.substr(position_, 2));
    Advance(2);
    if (Peek() == '-' || Peek() == '+') Advance(1);
    return LexInside(kind == '{' ? "}}" : "%}");
  }

  // After `close` was consumed: what white space does it swallow?
  void TrimAfter(char sign, bool is_block) {
    if (sign == '-') {
      SkipWhitespace();
    } else if (sign != '+' && is_block && Peek() == '\n') {
      Advance(1);
    }
  }

  Status SkipComment() {
    const size_t start = position_ + (Peek(2) == '-' || Peek(2) == '+' ? 3 : 2);
    const size_t end = source_.find("#}", start);
    if (end == std::string::npos) return MakeError("line {}: a comment is not closed", line_);
    const char sign = end > start ? source_[end - 1] : '\0';
    Advance(end + 2 - position_);
    TrimAfter(sign, /*is_block=*/true);
    return {};
  }

  // Length of `{% raw %}` at the current position, up to the name's end; 0 if it is another tag.
  size_t AtRawTag(std::string_view name) const {
    size_t offset = position_ + 2;
    if (offset < source_.size() && (source_[offset] == '-' || source_[offset] == '+')) ++offset;
    const std::string_view rest =
        std::string_view(source_).substr(std::min(offset, source_.size()));
    const size_t spaces = SkipSpaces(rest);
    if (rest.substr(spaces, name.size()) != name) return 0;
    const std::string_view after = rest.substr(spaces + name.size());
    const std::string_view tail = after.substr(SkipSpaces(after));
    const bool closes = tail.substr(0, 2) == "%}" || tail.substr(0, 3) == "-%}" ||
                        (name == "endraw" && tail.substr(0, 3) == "+%}");
    return closes ? offset + spaces + name.size() + (after.size() - tail.size()) - position_ : 0;
  }

  Status LexRaw() {
    const int start_line = line_;
    Advance(AtRawTag("raw"));
    const char sign = Peek() == '-' ? '-' : '\0';
    Advance(sign == '-' ? 3 : 2);
    if (sign == '-') SkipWhitespace();
    const size_t start = position_;
    const bool at_line_start = source_[start - 1] == '\n';
    size_t end = start;
    while ((end = source_.find("{%", end)) != std::string::npos) {
      const size_t saved = position_;
      position_ = end;
      const bool found = AtRawTag("endraw") != 0;
      position_ = saved;
      if (found) break;
      end += 2;
    }
    if (end == std::string::npos)
      return MakeError("line {}: a raw block is not closed", start_line);
    const std::string_view text =
        StripBeforeTag({source_.data() + start, end - start}, end, at_line_start);
    if (!text.empty()) Emit(Token::Kind::kText, std::string(text));
    Advance(end - position_);
    Advance(AtRawTag("endraw"));
    const char end_sign = Peek();
    Advance(end_sign == '%' ? 2 : 3);
    TrimAfter(end_sign, /*is_block=*/true);
    return {};
  }

  Status LexInside(std::string_view close) {
    std::string brackets;  // Closers still expected; inside them `}}` is two braces.
    while (true) {
      SkipWhitespace();
      if (position_ >= source_.size()) {
        return MakeError("line {}: the template ends inside a tag; expected '{}'", line_, close);
      }
      const bool is_block = close == "%}";
      if (brackets.empty()) {
        const char sign = Peek();
        const bool has_sign = (sign == '-' || (sign == '+' && is_block)) &&
                              source_.compare(position_ + 1, 2, close) == 0;
        if (has_sign || At(close)) {
          Emit(is_block ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, std::string(close));
          Advance(has_sign ? 3 : 2);
          TrimAfter(has_sign ? sign : '\0', is_block);
          return {};
        }
      }
      RETURN_IF_ERROR(LexToken(&brackets));
    }
  }

  Status LexToken(std::string* brackets) {
    const char c = Peek();
    if (IsNameStart(c)) {
      size_t length = 1;
      while (IsNameByte(Peek(length))) ++length;
      Emit(Token::Kind::kName, source_.substr(position_, length));
      Advance(length);
      return {};
    }
    if (IsDigit(c)) return LexNumber();
    if (c == '\'' || c == '"') return LexString();
    for (std::string_view op : kOperators) {
      if (!At(op)) continue;
      if (op == "(") brackets->push_back(')');
      if (op == "[") brackets->push_back(']');
      if (op == "{") brackets->push_back('}');
      if (op == ")" || op == "]" || op == "}") {
        if (brackets->empty()) return MakeError("line {}: unexpected '{}'", line_, op);
        if (brackets->back() != op[0]) {
          return MakeError("line {}: unexpected '{}', expected '{}'", line_, op, brackets->back());
        }
        brackets->pop_back();
      }
      Emit(Token::Kind::kOperator, std::string(op));
      Advance(op.size());
      return {};
    }
    const CodePoint found = DecodeAt(source_, position_);
    return MakeError("line {}: unexpected character U+{:04X} in a tag", line_,
                     found.value & 0x1FFFFF);
  }

  Status LexNumber() {
    size_t length = 0;
    std::string digits;
    const auto take_digits = [&] {
      while (IsDigit(Peek(length)) || (Peek(length) == '_' && IsDigit(Peek(length + 1)))) {
        if (Peek(length) != '_') digits.push_back(Peek(length));
        ++length;
      }
    };
    take_digits();
    bool is_float = false;
    if (Peek(length) == '.' && IsDigit(Peek(length + 1))) {
      is_float = true;
      digits.push_back('.');
      ++length;
      take_digits();
    }
    if (Peek(length) == 'e' || Peek(length) == 'E') {
      const size_t sign = Peek(length + 1) == '+' || Peek(length + 1) == '-' ? 1 : 0;
      if (IsDigit(Peek(length + 1 + sign))) {
        is_float = true;
        digits += 'e';
        if (Peek(length + 1) == '-') digits += '-';
        length += 1 + sign;
        take_digits();
      }
    }
    if (IsNameStart(Peek(length))) {
      return MakeError("line {}: a number must not be followed by '{}'", line_, Peek(length));
    }
    if (!is_float && digits.size() > 1 && digits.find_first_not_of('0') != std::string::npos &&
        digits[0] == '0') {
      return MakeError("line {}: a number must not start with 0", line_);
    }
    Emit(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(digits));
    Advance(length);
    return {};
  }

  Status LexString() {
    const char quote = Peek();
    const int start_line = line_;
    std::string text;
    size_t offset = position_ + 1;
    while (true) {
      if (offset >= source_.size()) {
        return MakeError("line {}: a string literal is not closed", start_line);
      }
      const char c = source_[offset++];
      if (c == quote) break;
      if (c != '\\') {
        text.push_back(c);
      } else {
        RETURN_IF_ERROR(LexEscape(&offset, &text));
      }
    }
    Emit(Token::Kind::kString, std::move(text));
    Advance(offset - position_);
    return {};
  }

  // Python's escapes; *offset points behind the backslash.
  Status LexEscape(size_t* offset, std::string* text) {
    static constexpr std::string_view kLetters = "ntr\\'\"abfv";
    static constexpr std::string_view kMeanings = "\n\t\r\\'\"\a\b\f\v";
    if (*offset >= source_.size()) return {};
    const char c = source_[(*offset)++];
    if (const size_t found = kLetters.find(c); found != std::string_view::npos) {
      text->push_back(kMeanings[found]);
    } else if (c == '\n') {  // A continued line.
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t value = 0;
      for (size_t digit = 0; digit < num_digits; ++digit) {
        const char hex = *offset < source_.size() ? source_[(*offset)++] : '\0';
        if (!std::isxdigit(static_cast<unsigned char>(hex))) {
          return MakeError("line {}: '\\{}' needs {} hexadecimal digits", line_, c, num_digits);
        }
        value = value << 4 | (IsDigit(hex) ? hex - '0' : (hex | 0x20) - 'a' + 10);
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
        return MakeError("line {}: '\\{}' names no character", line_, c);
      }
      AppendUtf8(value, text);
    } else if (c >= '0' && c <= '7') {
      uint32_t value = c - '0';
      for (int digit = 1; digit < 3 && *offset < source_.size(); ++digit) {
        const char octal = source_[*offset];
        if (octal < '0' || octal > '7') break;
        value = value << 3 | (octal - '0');
        ++*offset;
      }
      AppendUtf8(value, text);
    } else if (c == 'N') {
      return MakeError("line {}: '\\N{{...}}' in a string is not supported", line_);
    } else {
      text->push_back('\\');
      text->push_back(c);
    }
    return {};
  }

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::string Describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kEnd:
      return "the end of the template";
    case Token::Kind::kText:
      return "text";
    case Token::Kind::kString:
      return "a string";
    default:
      return "'" + token.text + "'";
  }
}

Result<std::vector<Token>> Tokenize(std::string_view source) {
  return Lexer(NormalizeNewlines(source)).Run();
}

}  // namespace lapidary::jinja
