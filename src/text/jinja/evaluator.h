// Runs a syntax tree. One object per rendering.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/builtins.h"
#include "text/jinja/template.h"

namespace lapidary::jinja {

class Evaluator {
 public:
  Evaluator(const Tree& tree, const Limits& limits);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  Status Define(const Variable& variable);
  Result<Text> Run();

 private:
  // Variables set at one level: the template, a loop turn, a macro call, a captured block.
  struct Scope {
    Scope* parent;
    std::vector<std::pair<NameId, Value>> variables;

    const Value* Find(NameId name) const;
    void Set(NameId name, Value value);
  };
  enum class Flow { kNormal, kBreak, kContinue };

  // evaluator.cc: statements
  Result<Flow> Execute(const Block& block);
  Result<Flow> ExecuteOne(const Stmt& stmt);
  Result<Flow> ExecuteIf(const Stmt& stmt);
  Result<Flow> ExecuteFor(const Stmt& stmt);
  Result<std::shared_ptr<const List>> LoopItems(const Stmt& stmt);
  Status ExecuteCaptured(const Stmt& stmt);
  Status Assign(const Expr& target, Value value);
  Status Output(const Value& value, int line);
  // Runs a body in a scope of its own and returns what it printed.
  Result<Text> Capture(const Block& body, Scope* scope);
  Result<Value> CallMacro(const Stmt& macro, Arguments arguments);
  Result<Value> MakeNamespace(const Arguments& arguments);

  // expressions.cc
  Result<Value> Evaluate(const Expr& expr);
  Result<Value> EvaluateKind(const Expr& expr);
  Value Lookup(const Expr& expr) const;
  Result<std::vector<Value>> EvaluateAll(const Expr& expr, size_t first_child);
  Result<Value> EvaluateDict(const Expr& expr);
  Result<Value> EvaluateSlice(const Expr& expr);
  Result<Value> EvaluateCall(const Expr& expr);
  Result<Value> EvaluateCompare(const Expr& expr);
  Result<Value> EvaluateConcat(const Expr& expr);
  Result<Arguments> EvaluateArguments(const Expr& expr);

  Status Enter(int line);

  const Tree& tree_;
  Budget budget_;
  Scope inputs_{nullptr, {}};  // Variables given from outside, and functions.
  Scope top_{&inputs_, {}};    // The template's own.
  Scope* scope_ = &top_;
  Text output_ = Text::Builder();
  std::vector<Value> captured_;  // Innermost last; what Expr::Kind::kCaptured means.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<int> loop_depths_{0};  // Nested loops, per macro call.
  NameId loop_name_ = -1;            // Where the template says `loop`.
  int depth_ = 0;
};

// "line N: " in front of a message that has no line yet; a message that is long is cut.
Error AtLine(int line, const Error& error);

}  // namespace lapidary::jinja
