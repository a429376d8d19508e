// Cuts a template into text and tag tokens, applying white-space control the way transformers sets
// it up: trim_blocks and lstrip_blocks on, one trailing newline dropped, line ends normalised to
// \n.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary::jinja {

struct Token {
  enum class Kind {
    kText,
    kOutputBegin,  // {{
    kOutputEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };

  Kind kind;
  std::string text;  // Strings are unescaped; numbers have no underscores.
  int line;

  bool IsOperator(std::string_view op) const { return kind == Kind::kOperator && text == op; }
  bool IsName(std::string_view name) const { return kind == Kind::kName && text == name; }
};

// As a person would say it: "'%}'", "name 'foo'", "the end of the template".
std::string Describe(const Token& token);

Result<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace lapidary::jinja
