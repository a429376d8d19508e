// Python's string operations on text with provenance: every character keeps where it came from.
#pragma once

#include <vector>

#include "base/result.h"
#include "text/jinja/budget.h"
#include "text/jinja/text.h"
#include "text/unicode.h"

namespace lapidary::jinja {

enum class Side { kBoth, kLeft, kRight };

// Without `chars`, strips white space.
Result<Text> Strip(const Text& text, const Text* chars, Side side, Budget& budget);
Result<Text> ChangeCase(const Text& text, Case to, Budget& budget);
Result<Text> Capitalize(const Text& text, Budget& budget);
Result<Text> TitleMethod(const Text& text, Budget& budget);  // str.title
Result<Text> TitleFilter(const Text& text, Budget& budget);  // jinja2's `title`
// Negative limits mean no limit.
Result<Text> Replace(const Text& text, const Text& old_text, const Text& new_text,
                     int64_t max_count, Budget& budget);
Result<std::vector<Text>> Split(const Text& text, const Text* separator, int64_t max_splits,
                                Budget& budget);
Result<std::vector<Text>> SplitFromRight(const Text& text, const Text& separator,
                                         int64_t max_splits, Budget& budget);
Result<std::vector<Text>> SplitLines(const Text& text, bool keep_ends, Budget& budget);
Result<Text> Repeat(const Text& text, int64_t count, Budget& budget);
Result<Text> Join(const std::vector<Text>& parts, const Text& separator, Budget& budget);
Result<Text> Indent(const Text& text, const Text& indent, bool first, bool blank, Budget& budget);

}  // namespace lapidary::jinja
