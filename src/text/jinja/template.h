// A bounded, sandboxed engine for the part of Jinja that chat templates use.
//
// Parse once, render from any number of threads. Semantics are jinja2's (immutable sandbox,
// trim_blocks, lstrip_blocks); constructs outside the supported part are errors when parsing. The
// output says of each byte whether the template wrote it or the input did.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/jinja/budget.h"
#include "text/text_segment.h"

namespace lapidary::jinja {

struct Tree;

// A variable of the template. Text in `value` counts as trusted only if `trusted` is set; that is
// for the engine's own constants (bos_token), which must be plain strings.
struct Variable {
  std::string name;
  nlohmann::ordered_json value;
  bool trusted = false;
};

class Template {
 public:
  // Errors start with "line N: ".
  static Result<Template> Parse(std::string_view source, const Limits& limits = {});

  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // Later variables win over earlier ones of the same name.
  Result<std::vector<TextSegment>> Render(const std::vector<Variable>& variables) const;

 private:
  Template(std::unique_ptr<const Tree> tree, const Limits& limits);

  std::unique_ptr<const Tree> tree_;
  Limits limits_;
};

}  // namespace lapidary::jinja
