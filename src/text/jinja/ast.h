// The syntax tree of a template. Immutable after parsing, so one tree serves many threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace lapidary::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
using NameId = int;  // Index into Tree::names.

enum class Op {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
};

struct Expr {
  // The children each kind has:
  enum class Kind {
    kConst,        // -                       value in `constant`
    kName,         // -                       variable `name`
    kCaptured,     // -                       the text of the enclosing set or filter block
    kList,         // items
    kTuple,        // items
    kDict,         // key, value, key, value, ...
    kGetAttr,      // object                  attribute `text`
    kGetItem,      // object, key
    kSlice,        // object, start, stop, step; the last three may be null
    kCall,         // callee, arguments       and `keywords`
    kFilter,       // operand, arguments      filter `text`, and `keywords`
    kTest,         // operand, arguments      test `text`, and `keywords`
    kNegate,       // operand
    kPlus,         // operand
    kBinary,       // left, right             operator ops[0]
    kCompare,      // a, b, c, ...            a ops[0] b and b ops[1] c ...
    kConcat,       // items                   joined by ~
    kAnd,          // left, right
    kOr,           // left, right
    kNot,          // operand
    kConditional,  // condition, value, otherwise (may be null)
  };

  Kind kind;
  int line;
  int height = 1;  // Of the tree below; bounded by Limits::parse_depth.
  NameId name = -1;
  std::string text;
  Value constant;
  std::vector<Op> ops;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  enum class Kind {
    kText,         // `text`
    kOutput,       // {{ expr }}
    kIf,           // branches; a null condition is the else
    kFor,          // for target in expr if filter: body, else otherwise
    kSet,          // target = expr
    kSetBlock,     // target = expr over the captured body
    kFilterBlock,  // prints expr over the captured body
    kMacro,        // macro `name`(params): body
    kScope,        // body with variables of its own ({% generation %})
    kBreak,
    kContinue,
  };
  struct Branch {
    ExprPtr condition;
    Block body;
  };
  struct Param {
    NameId name;
    ExprPtr default_value;  // May be null: then undefined.
  };

  Kind kind;
  int line;
  Text text;
  ExprPtr expr;
  ExprPtr target;  // kName, kGetAttr on a kName (a namespace's attribute), or a kTuple of names.
  ExprPtr filter;
  std::vector<Branch> branches;
  Block body;
  Block otherwise;
  NameId name = -1;
  std::vector<Param> params;
};

struct Tree {
  Block body;
  std::vector<std::string> names;
};

}  // namespace lapidary::jinja
