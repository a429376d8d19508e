// What one rendering may consume. A template comes with a checkpoint and is not trusted: every
// loop, copy and recursion draws on these limits, so no template can hang or exhaust the process.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace lapidary::jinja {

struct Limits {
  size_t template_bytes = 1 << 20;
  // Block nesting, bracket nesting, and the height of an expression tree.
  int parse_depth = 120;
  // Nested evaluations, through macro calls too. Some 25 per level of a recursive macro.
  int eval_depth = 1500;
  // Lists inside lists, in template values and in the input.
  int value_depth = 400;
  // One step per evaluated node or loop turn, and one per 16 bytes of text looked at.
  size_t steps = 50'000'000;
  size_t output_bytes = 16 << 20;
  // Everything ever built during one rendering: text by byte, list elements by size.
  size_t made_bytes = 256 << 20;
  size_t range_length = 100'000;  // As in jinja2's sandbox.
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }

  Status Step(size_t count = 1) {
    if (count > limits_.steps - steps_) [[unlikely]] {
      return MakeError("the template runs for more than {} steps", limits_.steps);
    }
    steps_ += count;
    return {};
  }

  // Reading `count` bytes of text.
  Status Scan(size_t count) { return Step(count / 16 + 1); }

  // Building `count` bytes of text or list.
  Status Make(size_t count) {
    if (count > limits_.made_bytes - made_bytes_) [[unlikely]] {
      return MakeError("the template builds more than {} bytes of values", limits_.made_bytes);
    }
    made_bytes_ += count;
    return Scan(count);
  }

  size_t steps() const { return steps_; }

 private:
  Limits limits_;
  size_t steps_ = 0;
  size_t made_bytes_ = 0;
};

}  // namespace lapidary::jinja
