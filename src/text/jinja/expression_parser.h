// Expressions of the template language, by recursive descent with jinja2's precedence.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/lexer.h"

namespace lapidary::jinja {

// The tokens ahead, and how deep the parser is in them.
class TokenStream {
 public:
  // Counts as one level of nesting while it lives.
  class Nesting {
   public:
    explicit Nesting(int* depth) : depth_(depth) { ++*depth_; }
    Nesting(Nesting&& other) noexcept : depth_(std::exchange(other.depth_, nullptr)) {}
    ~Nesting() {
      if (depth_ != nullptr) --*depth_;
    }

   private:
    int* depth_;
  };

  TokenStream(std::vector<Token> tokens, const Limits& limits)
      : tokens_(std::move(tokens)), limits_(limits) {}

  const Token& current() const { return tokens_[position_]; }
  const Token& ahead() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token Next() {
    return position_ + 1 < tokens_.size() ? tokens_[position_++] : tokens_[position_];
  }
  // Replaces the token just taken.
  void PushBack(Token token) { tokens_[--position_] = std::move(token); }

  Error Unexpected(std::string_view expected) const;
  Status Expect(Token::Kind kind, std::string_view text);
  Status ExpectOperator(std::string_view op);
  Result<Token> ExpectName();

  Result<Nesting> Enter(std::string_view what);
  int max_depth() const { return limits_.parse_depth; }

 private:
  std::vector<Token> tokens_;
  Limits limits_;
  size_t position_ = 0;
  int depth_ = 0;
};

class ExpressionParser {
 public:
  // Names of variables are numbered in *names.
  ExpressionParser(TokenStream* stream, std::vector<std::string>* names)
      : stream_(*stream), names_(*names) {}

  Result<ExprPtr> Parse(bool with_conditional = true);
  // One expression, or several with commas between.
  Result<ExprPtr> ParseTuple(bool with_conditional = true);
  // The left side of an assignment; `with_attribute` allows `ns.name`.
  Result<ExprPtr> ParseTarget(bool with_attribute);
  // `| filter | filter` over the text of a block.
  Result<ExprPtr> ParseCapturedFilters();

  NameId Intern(const std::string& name);
  Status CheckAssignable(const Token& name) const;

 private:
  Result<ExprPtr> ParseOr();
  Result<ExprPtr> ParseAnd();
  Result<ExprPtr> ParseNot();
  Result<ExprPtr> ParseCompare();
  Result<ExprPtr> ParseConcat();
  // Left-associative operators by level: 0 is + and -, 1 is ~, 2 is * / // %, 3 is **.
  Result<ExprPtr> ParseBinary(int level);
  Result<ExprPtr> ParseUnary(bool with_filter = true);
  Result<ExprPtr> ParsePrimary();
  Result<ExprPtr> ParseBracketed(const Token& open);
  Result<ExprPtr> ParsePostfix(ExprPtr operand);
  Result<ExprPtr> ParseSubscript(ExprPtr object, int line);
  Result<ExprPtr> ParseFilters(ExprPtr operand);
  Result<ExprPtr> ParseFilter(ExprPtr operand);
  Result<ExprPtr> ParseTest(ExprPtr operand);
  Status ParseArguments(Expr* call);
  Result<ExprPtr> ParseTargetName(bool with_attribute);

  ExprPtr Make(Expr::Kind kind, int line) const;
  // Checks the height of the finished node.
  Result<ExprPtr> Finish(ExprPtr expr) const;

  TokenStream& stream_;
  std::vector<std::string>& names_;
  std::unordered_map<std::string, NameId> name_ids_;
};

}  // namespace lapidary::jinja
