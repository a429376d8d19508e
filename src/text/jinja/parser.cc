// Statements. Expressions are in expression_parser.cc.
#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "text/jinja/expression_parser.h"
#include "text/jinja/lexer.h"

namespace lapidary::jinja {
namespace {

using Kind = Token::Kind;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const Limits& limits)
      : stream_(std::move(tokens), limits), expressions_(&stream_, &tree_.names) {}

  Result<Tree> Run() {
    ASSIGN_OR_RETURN(tree_.body, ParseBlock({}));
    return std::move(tree_);
  }

 private:
  using StmtPtr = std::unique_ptr<Stmt>;

  static StmtPtr Make(Stmt::Kind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // Statements up to a tag whose name is in `ends`; stops behind that name, which is in end_name_.
  Result<Block> ParseBlock(std::initializer_list<std::string_view> ends) {
    ASSIGN_OR_RETURN(const auto nesting, stream_.Enter("blocks"));
    const int start_line = stream_.current().line;
    Block block;
    while (stream_.current().kind != Kind::kEnd) {
      const Token token = stream_.Next();
      if (token.kind == Kind::kText) {
        block.push_back(Make(Stmt::Kind::kText, token.line));
        block.back()->text = Text::Frozen(token.text);
      } else if (token.kind == Kind::kOutputBegin) {
        block.push_back(Make(Stmt::Kind::kOutput, token.line));
        ASSIGN_OR_RETURN(block.back()->expr, expressions_.ParseTuple());
        RETURN_IF_ERROR(stream_.Expect(Kind::kOutputEnd, "}}"));
      } else {
        ASSIGN_OR_RETURN(const Token name, stream_.ExpectName());
        if (std::find(ends.begin(), ends.end(), name.text) != ends.end()) {
          end_name_ = name.text;
          return block;
        }
        ASSIGN_OR_RETURN(StmtPtr stmt, ParseTag(name));
        block.push_back(std::move(stmt));
      }
    }
    if (ends.size() > 0) {
      return MakeError("line {}: a block is not closed; expected '{}'", start_line,
                       *(ends.end() - 1));
    }
    return block;
  }

  Status EndTag() { return stream_.Expect(Kind::kBlockEnd, "%}"); }

  Result<StmtPtr> ParseTag(const Token& name) {
    if (name.text == "if") return ParseIf(name.line);
    if (name.text == "for") return ParseFor(name.line);
    if (name.text == "set") return ParseSet(name.line);
    if (name.text == "macro") return ParseMacro(name.line);
    if (name.text == "filter") return ParseFilterBlock(name.line);
    if (name.text == "generation") return ParseGeneration(name.line);
    if (name.text == "break" || name.text == "continue") {
      if (loop_depth_ == 0) return MakeError("line {}: '{}' outside a loop", name.line, name.text);
      RETURN_IF_ERROR(EndTag());
      return Make(name.text == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue, name.line);
    }
    for (std::string_view known : {"call", "block", "extends", "include", "import", "from", "with",
                                   "autoescape", "do", "trans", "debug"}) {
      if (name.text == known) {
        return MakeError("line {}: the tag '{}' is not supported", name.line, known);
      }
    }
    return MakeError("line {}: unexpected tag '{}'", name.line, name.text);
  }

  Result<StmtPtr> ParseIf(int line) {
    StmtPtr stmt = Make(Stmt::Kind::kIf, line);
    end_name_ = "elif";
    while (end_name_ == "elif") {
      Stmt::Branch branch;
      ASSIGN_OR_RETURN(branch.condition, expressions_.ParseTuple(/*with_conditional=*/false));
      RETURN_IF_ERROR(EndTag());
      ASSIGN_OR_RETURN(branch.body, ParseBlock({"elif", "else", "endif"}));
      stmt->branches.push_back(std::move(branch));
    }
    if (end_name_ == "else") {
      RETURN_IF_ERROR(EndTag());
      Stmt::Branch branch;
      ASSIGN_OR_RETURN(branch.body, ParseBlock({"endif"}));
      stmt->branches.push_back(std::move(branch));
    }
    RETURN_IF_ERROR(EndTag());
    return stmt;
  }

  Result<StmtPtr> ParseFor(int line) {
    StmtPtr stmt = Make(Stmt::Kind::kFor, line);
    ASSIGN_OR_RETURN(stmt->target, expressions_.ParseTarget(/*with_attribute=*/false));
    if (!stream_.current().IsName("in")) return stream_.Unexpected("'in'");
    stream_.Next();
    ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseTuple(/*with_conditional=*/false));
    if (stream_.current().IsName("if")) {
      stream_.Next();
      ASSIGN_OR_RETURN(stmt->filter, expressions_.Parse());
    }
    if (stream_.current().IsName("recursive")) {
      return MakeError("line {}: 'recursive' loops are not supported", line);
    }
    RETURN_IF_ERROR(EndTag());
    ++loop_depth_;
    ++inner_depth_;
    ASSIGN_OR_RETURN(stmt->body, ParseBlock({"else", "endfor"}));
    --loop_depth_;
    if (end_name_ == "else") {
      RETURN_IF_ERROR(EndTag());
      ASSIGN_OR_RETURN(stmt->otherwise, ParseBlock({"endfor"}));
    }
    --inner_depth_;
    RETURN_IF_ERROR(EndTag());
    return stmt;
  }

  // A body whose variables stay inside; break and continue do not reach out of it.
  Result<Block> ParseInner(std::string_view end) {
    const int outer_loops = std::exchange(loop_depth_, 0);
    ++inner_depth_;
    ASSIGN_OR_RETURN(Block body, ParseBlock({end}));
    --inner_depth_;
    loop_depth_ = outer_loops;
    RETURN_IF_ERROR(EndTag());
    return body;
  }

  Result<StmtPtr> ParseSet(int line) {
    StmtPtr stmt = Make(Stmt::Kind::kSet, line);
    ASSIGN_OR_RETURN(stmt->target, expressions_.ParseTarget(/*with_attribute=*/true));
    if (stream_.current().IsOperator("=")) {
      stream_.Next();
      ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseTuple());
      RETURN_IF_ERROR(EndTag());
      return stmt;
    }
    stmt->kind = Stmt::Kind::kSetBlock;
    if (stmt->target->kind == Expr::Kind::kTuple) return stream_.Unexpected("'='");
    ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseCapturedFilters());
    RETURN_IF_ERROR(EndTag());
    ASSIGN_OR_RETURN(stmt->body, ParseInner("endset"));
    return stmt;
  }

  Result<StmtPtr> ParseFilterBlock(int line) {
    StmtPtr stmt = Make(Stmt::Kind::kFilterBlock, line);
    stream_.PushBack({Kind::kOperator, "|", line});
    ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseCapturedFilters());
    RETURN_IF_ERROR(EndTag());
    ASSIGN_OR_RETURN(stmt->body, ParseInner("endfilter"));
    return stmt;
  }

  Result<StmtPtr> ParseGeneration(int line) {
    StmtPtr stmt = Make(Stmt::Kind::kScope, line);
    RETURN_IF_ERROR(EndTag());
    ASSIGN_OR_RETURN(stmt->body, ParseInner("endgeneration"));
    return stmt;
  }

  // Macros see the template's own variables only, so they must not be hidden in an inner scope.
  Result<StmtPtr> ParseMacro(int line) {
    if (inner_depth_ > 0) {
      return MakeError("line {}: a macro inside a loop, macro or set block is not supported", line);
    }
    StmtPtr stmt = Make(Stmt::Kind::kMacro, line);
    ASSIGN_OR_RETURN(const Token name, stream_.ExpectName());
    stmt->name = expressions_.Intern(name.text);
    stmt->text = Text::Frozen(name.text);
    RETURN_IF_ERROR(stream_.ExpectOperator("("));
    while (!stream_.current().IsOperator(")")) {
      if (!stmt->params.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
      ASSIGN_OR_RETURN(const Token param, stream_.ExpectName());
      RETURN_IF_ERROR(expressions_.CheckAssignable(param));
      Stmt::Param parsed{expressions_.Intern(param.text), nullptr};
      if (stream_.current().IsOperator("=")) {
        stream_.Next();
        ASSIGN_OR_RETURN(parsed.default_value, expressions_.Parse());
      } else if (!stmt->params.empty() && stmt->params.back().default_value != nullptr) {
        return MakeError("line {}: parameter '{}' without a default follows one with a default",
                         param.line, param.text);
      }
      stmt->params.push_back(std::move(parsed));
    }
    stream_.Next();
    RETURN_IF_ERROR(EndTag());
    ASSIGN_OR_RETURN(stmt->body, ParseInner("endmacro"));
    return stmt;
  }

  TokenStream stream_;
  Tree tree_;
  ExpressionParser expressions_;
  std::string end_name_;
  int loop_depth_ = 0;   // Loops that a break here could leave.
  int inner_depth_ = 0;  // Scopes around the current position, the template's own not counted.
};

}  // namespace

Result<Tree> Parse(std::string_view source, const Limits& limits) {
  if (source.size() > limits.template_bytes) {
    return MakeError("the template has {} bytes; at most {} are allowed", source.size(),
                     limits.template_bytes);
  }
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens), limits).Run();
}

}  // namespace lapidary::jinja
