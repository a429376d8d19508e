#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>

#include "text/jinja/builtins.h"

namespace lapidary::jinja {
namespace {

using Kind = Token::Kind;

struct BinaryOperator {
  std::string_view token;
  int level;
  Op op;
};
constexpr BinaryOperator kBinaryOperators[] = {
    {"+", 0, Op::kAdd},       {"-", 0, Op::kSub}, {"*", 2, Op::kMul}, {"/", 2, Op::kDiv},
    {"//", 2, Op::kFloorDiv}, {"%", 2, Op::kMod}, {"**", 3, Op::kPow}};
constexpr int kConcatLevel = 1;
constexpr int kTightestLevel = 3;

constexpr std::pair<std::string_view, Op> kComparisons[] = {{"==", Op::kEq}, {"!=", Op::kNe},
                                                            {"<", Op::kLt},  {"<=", Op::kLe},
                                                            {">", Op::kGt},  {">=", Op::kGe}};

bool EndsTuple(const Token& token) {
  return token.kind == Kind::kOutputEnd || token.kind == Kind::kBlockEnd || token.IsOperator(")") ||
         token.IsName("in") || token.IsName("recursive");
}

}  // namespace

Error TokenStream::Unexpected(std::string_view expected) const {
  return MakeError("line {}: expected {} but found {}", current().line, expected,
                   Describe(current()));
}

Status TokenStream::Expect(Kind kind, std::string_view text) {
  if (current().kind != kind) return Unexpected(fmt::format("'{}'", text));
  Next();
  return {};
}

Status TokenStream::ExpectOperator(std::string_view op) {
  if (!current().IsOperator(op)) return Unexpected(fmt::format("'{}'", op));
  Next();
  return {};
}

Result<Token> TokenStream::ExpectName() {
  if (current().kind != Kind::kName) return Unexpected("a name");
  return Next();
}

Result<TokenStream::Nesting> TokenStream::Enter(std::string_view what) {
  if (depth_ >= limits_.parse_depth) {
    return MakeError("line {}: {} are nested more than {} levels deep", current().line, what,
                     limits_.parse_depth);
  }
  return Nesting(&depth_);
}

ExprPtr ExpressionParser::Make(Expr::Kind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

Result<ExprPtr> ExpressionParser::Finish(ExprPtr expr) const {
  for (const ExprPtr& child : expr->children) {
    if (child != nullptr) expr->height = std::max(expr->height, child->height + 1);
  }
  for (const auto& keyword : expr->keywords) {
    expr->height = std::max(expr->height, keyword.second->height + 1);
  }
  if (expr->height <= stream_.max_depth()) return expr;
  return MakeError("line {}: an expression chains more than {} operations", expr->line,
                   stream_.max_depth());
}

NameId ExpressionParser::Intern(const std::string& name) {
  const auto [slot, is_new] = name_ids_.emplace(name, static_cast<NameId>(names_.size()));
  if (is_new) names_.push_back(name);
  return slot->second;
}

Status ExpressionParser::CheckAssignable(const Token& name) const {
  for (std::string_view reserved : {"true", "false", "none", "True", "False", "None", "and", "or",
                                    "not", "in", "is", "if", "else"}) {
    if (name.text == reserved) {
      return MakeError("line {}: '{}' cannot be assigned to", name.line, name.text);
    }
  }
  return {};
}

Result<ExprPtr> ExpressionParser::Parse(bool with_conditional) {
  ASSIGN_OR_RETURN(const auto nesting, stream_.Enter("expressions"));
  ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
  while (with_conditional && stream_.current().IsName("if")) {
    ExprPtr conditional = Make(Expr::Kind::kConditional, stream_.Next().line);
    ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    ExprPtr otherwise;
    if (stream_.current().IsName("else")) {
      stream_.Next();
      ASSIGN_OR_RETURN(otherwise, Parse());
    }
    conditional->children.push_back(std::move(condition));
    conditional->children.push_back(std::move(value));
    conditional->children.push_back(std::move(otherwise));
    ASSIGN_OR_RETURN(value, Finish(std::move(conditional)));
  }
  return value;
}

Result<ExprPtr> ExpressionParser::ParseTuple(bool with_conditional) {
  ExprPtr tuple = Make(Expr::Kind::kTuple, stream_.current().line);
  bool has_comma = false;
  while (tuple->children.empty() || !EndsTuple(stream_.current())) {
    ASSIGN_OR_RETURN(ExprPtr item, Parse(with_conditional));
    tuple->children.push_back(std::move(item));
    if (!stream_.current().IsOperator(",")) break;
    stream_.Next();
    has_comma = true;
  }
  if (!has_comma) return std::move(tuple->children[0]);
  return Finish(std::move(tuple));
}

Result<ExprPtr> ExpressionParser::ParseTargetName(bool with_attribute) {
  ASSIGN_OR_RETURN(const Token name, stream_.ExpectName());
  RETURN_IF_ERROR(CheckAssignable(name));
  ExprPtr target = Make(Expr::Kind::kName, name.line);
  target->name = Intern(name.text);
  if (with_attribute && stream_.current().IsOperator(".")) {
    stream_.Next();
    ASSIGN_OR_RETURN(const Token attribute, stream_.ExpectName());
    ExprPtr reference = Make(Expr::Kind::kGetAttr, name.line);
    reference->text = attribute.text;
    reference->children.push_back(std::move(target));
    return reference;
  }
  return target;
}

Result<ExprPtr> ExpressionParser::ParseTarget(bool with_attribute) {
  const bool parenthesised = stream_.current().IsOperator("(");
  if (parenthesised) stream_.Next();
  ExprPtr tuple = Make(Expr::Kind::kTuple, stream_.current().line);
  bool has_comma = false;
  while (tuple->children.empty() || stream_.current().kind == Kind::kName) {
    if (!tuple->children.empty() && stream_.current().IsName("in")) break;
    ASSIGN_OR_RETURN(ExprPtr target, ParseTargetName(with_attribute));
    tuple->children.push_back(std::move(target));
    if (!stream_.current().IsOperator(",")) break;
    stream_.Next();
    has_comma = true;
  }
  if (parenthesised) RETURN_IF_ERROR(stream_.ExpectOperator(")"));
  if (!has_comma) return std::move(tuple->children[0]);
  return tuple;
}

Result<ExprPtr> ExpressionParser::ParseCapturedFilters() {
  ExprPtr value = Make(Expr::Kind::kCaptured, stream_.current().line);
  while (stream_.current().IsOperator("|")) {
    ASSIGN_OR_RETURN(value, ParseFilter(std::move(value)));
  }
  return value;
}

Result<ExprPtr> ExpressionParser::ParseOr() {
  ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
  while (stream_.current().IsName("or")) {
    ExprPtr expr = Make(Expr::Kind::kOr, stream_.Next().line);
    ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
    expr->children.push_back(std::move(left));
    expr->children.push_back(std::move(right));
    ASSIGN_OR_RETURN(left, Finish(std::move(expr)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::ParseAnd() {
  ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
  while (stream_.current().IsName("and")) {
    ExprPtr expr = Make(Expr::Kind::kAnd, stream_.Next().line);
    ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
    expr->children.push_back(std::move(left));
    expr->children.push_back(std::move(right));
    ASSIGN_OR_RETURN(left, Finish(std::move(expr)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::ParseNot() {
  if (!stream_.current().IsName("not")) return ParseCompare();
  ASSIGN_OR_RETURN(const auto nesting, stream_.Enter("expressions"));
  ExprPtr expr = Make(Expr::Kind::kNot, stream_.Next().line);
  ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  expr->children.push_back(std::move(operand));
  return Finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParseCompare() {
  ASSIGN_OR_RETURN(ExprPtr first, ParseBinary(0));
  ExprPtr expr = Make(Expr::Kind::kCompare, first->line);
  expr->children.push_back(std::move(first));
  while (true) {
    const Token& token = stream_.current();
    const auto* known =
        std::find_if(std::begin(kComparisons), std::end(kComparisons),
                     [&](const auto& candidate) { return token.IsOperator(candidate.first); });
    if (known != std::end(kComparisons)) {
      expr->ops.push_back(known->second);
    } else if (token.IsName("in")) {
      expr->ops.push_back(Op::kIn);
    } else if (token.IsName("not") && stream_.ahead().IsName("in")) {
      expr->ops.push_back(Op::kNotIn);
      stream_.Next();
    } else {
      break;
    }
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr operand, ParseBinary(0));
    expr->children.push_back(std::move(operand));
  }
  if (expr->ops.empty()) return std::move(expr->children[0]);
  return Finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParseConcat() {
  ASSIGN_OR_RETURN(ExprPtr first, ParseBinary(kConcatLevel + 1));
  if (!stream_.current().IsOperator("~")) return first;
  ExprPtr expr = Make(Expr::Kind::kConcat, first->line);
  expr->children.push_back(std::move(first));
  while (stream_.current().IsOperator("~")) {
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr operand, ParseBinary(kConcatLevel + 1));
    expr->children.push_back(std::move(operand));
  }
  return Finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParseBinary(int level) {
  if (level == kConcatLevel) return ParseConcat();
  if (level > kTightestLevel) return ParseUnary();
  ASSIGN_OR_RETURN(ExprPtr left, ParseBinary(level + 1));
  while (true) {
    const auto* known = std::find_if(std::begin(kBinaryOperators), std::end(kBinaryOperators),
                                     [&](const BinaryOperator& candidate) {
                                       return candidate.level == level &&
                                              stream_.current().IsOperator(candidate.token);
                                     });
    if (known == std::end(kBinaryOperators)) return left;
    ExprPtr expr = Make(Expr::Kind::kBinary, stream_.Next().line);
    expr->ops.push_back(known->op);
    ASSIGN_OR_RETURN(ExprPtr right, ParseBinary(level + 1));
    expr->children.push_back(std::move(left));
    expr->children.push_back(std::move(right));
    ASSIGN_OR_RETURN(left, Finish(std::move(expr)));
  }
}

Result<ExprPtr> ExpressionParser::ParseUnary(bool with_filter) {
  ASSIGN_OR_RETURN(const auto nesting, stream_.Enter("expressions"));
  const bool negate = stream_.current().IsOperator("-");
  ExprPtr expr;
  if (negate || stream_.current().IsOperator("+")) {
    expr = Make(negate ? Expr::Kind::kNegate : Expr::Kind::kPlus, stream_.Next().line);
    ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(/*with_filter=*/false));
    expr->children.push_back(std::move(operand));
    ASSIGN_OR_RETURN(expr, Finish(std::move(expr)));
  } else {
    ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  return with_filter ? ParseFilters(std::move(expr)) : Result<ExprPtr>(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParsePrimary() {
  const Kind kind = stream_.current().kind;
  if (kind != Kind::kName && kind != Kind::kString && kind != Kind::kInteger &&
      kind != Kind::kFloat && kind != Kind::kOperator) {
    return stream_.Unexpected("an expression");
  }
  const Token token = stream_.Next();
  ExprPtr expr = Make(Expr::Kind::kConst, token.line);
  if (kind == Kind::kName) {
    if (token.text == "true" || token.text == "True") {
      expr->constant = Value(true);
    } else if (token.text == "false" || token.text == "False") {
      expr->constant = Value(false);
    } else if (token.text == "none" || token.text == "None") {
      expr->constant = Value(None{});
    } else {
      expr->kind = Expr::Kind::kName;
      expr->name = Intern(token.text);
      expr->text = token.text;
    }
  } else if (kind == Kind::kString) {
    std::string joined = token.text;
    while (stream_.current().kind == Kind::kString) joined += stream_.Next().text;
    expr->constant = Value(Text::Frozen(std::move(joined)));
  } else if (kind == Kind::kInteger) {
    int64_t number = 0;
    const char* end = token.text.data() + token.text.size();
    if (std::from_chars(token.text.data(), end, number).ec != std::errc()) {
      return MakeError("line {}: the number {} is too large", token.line, token.text);
    }
    expr->constant = Value(Int{number});
  } else if (kind == Kind::kFloat) {
    double number = 0;
    const char* end = token.text.data() + token.text.size();
    if (std::from_chars(token.text.data(), end, number).ec != std::errc()) {
      return MakeError("line {}: the number {} is out of range", token.line, token.text);
    }
    expr->constant = Value(number);
  } else {
    return ParseBracketed(token);
  }
  return expr;
}

Result<ExprPtr> ExpressionParser::ParseBracketed(const Token& open) {
  if (open.text == "(") {
    if (stream_.current().IsOperator(")")) {
      stream_.Next();
      return Make(Expr::Kind::kTuple, open.line);
    }
    ASSIGN_OR_RETURN(ExprPtr inner, ParseTuple());
    RETURN_IF_ERROR(stream_.ExpectOperator(")"));
    return inner;
  }
  const bool is_dict = open.text == "{";
  if (!is_dict && open.text != "[") {
    return MakeError("line {}: expected an expression but found '{}'", open.line, open.text);
  }
  const std::string_view close = is_dict ? "}" : "]";
  ExprPtr expr = Make(is_dict ? Expr::Kind::kDict : Expr::Kind::kList, open.line);
  while (!stream_.current().IsOperator(close)) {
    if (!expr->children.empty()) {
      RETURN_IF_ERROR(stream_.ExpectOperator(","));
      if (stream_.current().IsOperator(close)) break;
    }
    ASSIGN_OR_RETURN(ExprPtr item, Parse());
    expr->children.push_back(std::move(item));
    if (is_dict) {
      RETURN_IF_ERROR(stream_.ExpectOperator(":"));
      ASSIGN_OR_RETURN(ExprPtr value, Parse());
      expr->children.push_back(std::move(value));
    }
  }
  stream_.Next();
  return Finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr operand) {
  while (true) {
    const int line = stream_.current().line;
    if (stream_.current().IsOperator(".")) {
      stream_.Next();
      const Token attribute = stream_.Next();
      const bool is_name = attribute.kind == Kind::kName;
      if (!is_name && attribute.kind != Kind::kInteger) {
        return MakeError("line {}: expected a name after '.' but found {}", line,
                         Describe(attribute));
      }
      ExprPtr expr = Make(is_name ? Expr::Kind::kGetAttr : Expr::Kind::kGetItem, line);
      expr->text = attribute.text;
      expr->children.push_back(std::move(operand));
      if (!is_name) {
        int64_t number = 0;
        const char* end = attribute.text.data() + attribute.text.size();
        std::from_chars(attribute.text.data(), end, number);
        ExprPtr index = Make(Expr::Kind::kConst, line);
        index->constant = Value(Int{number});
        expr->children.push_back(std::move(index));
      }
      ASSIGN_OR_RETURN(operand, Finish(std::move(expr)));
    } else if (stream_.current().IsOperator("[")) {
      stream_.Next();
      ASSIGN_OR_RETURN(operand, ParseSubscript(std::move(operand), line));
    } else if (stream_.current().IsOperator("(")) {
      ExprPtr call = Make(Expr::Kind::kCall, line);
      call->children.push_back(std::move(operand));
      RETURN_IF_ERROR(ParseArguments(call.get()));
      ASSIGN_OR_RETURN(operand, Finish(std::move(call)));
    } else {
      return operand;
    }
  }
}

Result<ExprPtr> ExpressionParser::ParseSubscript(ExprPtr object, int line) {
  ExprPtr parts[3];
  int num_colons = 0;
  while (!stream_.current().IsOperator("]")) {
    if (stream_.current().IsOperator(":")) {
      stream_.Next();
      if (++num_colons > 2) return stream_.Unexpected("']'");
      continue;
    }
    if (stream_.current().IsOperator(",")) {
      return MakeError("line {}: several subscripts in one pair of brackets are not supported",
                       line);
    }
    if (parts[num_colons] != nullptr) return stream_.Unexpected("']'");
    ASSIGN_OR_RETURN(parts[num_colons], Parse());
  }
  stream_.Next();
  const bool is_slice = num_colons > 0;
  if (!is_slice && parts[0] == nullptr) parts[0] = Make(Expr::Kind::kTuple, line);
  ExprPtr expr = Make(is_slice ? Expr::Kind::kSlice : Expr::Kind::kGetItem, line);
  expr->children.push_back(std::move(object));
  expr->children.push_back(std::move(parts[0]));
  if (is_slice) {
    expr->children.push_back(std::move(parts[1]));
    expr->children.push_back(std::move(parts[2]));
  }
  return Finish(std::move(expr));
}

Status ExpressionParser::ParseArguments(Expr* call) {
  RETURN_IF_ERROR(stream_.ExpectOperator("("));
  bool first = true;
  while (!stream_.current().IsOperator(")")) {
    if (!first) {
      RETURN_IF_ERROR(stream_.ExpectOperator(","));
      if (stream_.current().IsOperator(")")) break;
    }
    first = false;
    if (stream_.current().IsOperator("*") || stream_.current().IsOperator("**")) {
      return MakeError("line {}: unpacking arguments with '{}' is not supported",
                       stream_.current().line, stream_.current().text);
    }
    if (stream_.current().kind == Kind::kName && stream_.ahead().IsOperator("=")) {
      const Token name = stream_.Next();
      stream_.Next();
      for (const auto& keyword : call->keywords) {
        if (keyword.first == name.text) {
          return MakeError("line {}: argument '{}' is given twice", name.line, name.text);
        }
      }
      ASSIGN_OR_RETURN(ExprPtr value, Parse());
      call->keywords.emplace_back(name.text, std::move(value));
    } else {
      if (!call->keywords.empty()) {
        return MakeError("line {}: a plain argument follows a named one", stream_.current().line);
      }
      ASSIGN_OR_RETURN(ExprPtr value, Parse());
      call->children.push_back(std::move(value));
    }
  }
  stream_.Next();
  return {};
}

Result<ExprPtr> ExpressionParser::ParseFilters(ExprPtr operand) {
  while (true) {
    if (stream_.current().IsOperator("|")) {
      ASSIGN_OR_RETURN(operand, ParseFilter(std::move(operand)));
    } else if (stream_.current().IsName("is")) {
      ASSIGN_OR_RETURN(operand, ParseTest(std::move(operand)));
    } else if (stream_.current().IsOperator("(")) {
      ASSIGN_OR_RETURN(operand, ParsePostfix(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Result<ExprPtr> ExpressionParser::ParseFilter(ExprPtr operand) {
  stream_.Next();
  ASSIGN_OR_RETURN(const Token name, stream_.ExpectName());
  if (!IsFilter(name.text)) {
    return MakeError("line {}: the filter '{}' is not supported", name.line, name.text);
  }
  ExprPtr expr = Make(Expr::Kind::kFilter, name.line);
  expr->text = name.text;
  expr->children.push_back(std::move(operand));
  if (stream_.current().IsOperator("(")) RETURN_IF_ERROR(ParseArguments(expr.get()));
  return Finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParseTest(ExprPtr operand) {
  stream_.Next();
  const bool negated = stream_.current().IsName("not");
  if (negated) stream_.Next();
  ASSIGN_OR_RETURN(const Token name, stream_.ExpectName());
  if (!IsTest(name.text)) {
    return MakeError("line {}: the test '{}' is not supported", name.line, name.text);
  }
  ExprPtr expr = Make(Expr::Kind::kTest, name.line);
  expr->text = name.text;
  expr->children.push_back(std::move(operand));
  const Token& next = stream_.current();
  const bool starts_value = next.kind == Kind::kName || next.kind == Kind::kString ||
                            next.kind == Kind::kInteger || next.kind == Kind::kFloat ||
                            next.IsOperator("[") || next.IsOperator("{");
  if (next.IsOperator("(")) {
    RETURN_IF_ERROR(ParseArguments(expr.get()));
  } else if (next.IsName("is")) {
    return MakeError("line {}: tests cannot be chained with 'is'", next.line);
  } else if (starts_value && !next.IsName("else") && !next.IsName("or") && !next.IsName("and")) {
    // As in jinja2, a name here is an argument, `if` included: only else, or, and end the test.
    ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    expr->children.push_back(std::move(argument));
  }
  ASSIGN_OR_RETURN(expr, Finish(std::move(expr)));
  if (!negated) return expr;
  ExprPtr negation = Make(Expr::Kind::kNot, name.line);
  negation->children.push_back(std::move(expr));
  return Finish(std::move(negation));
}

}  // namespace lapidary::jinja
