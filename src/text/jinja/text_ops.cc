#include "text/jinja/text_ops.h"

#include <algorithm>

namespace lapidary::jinja {
namespace {

// Rewrites character by character: map(code point, &out) appends what replaces it.
template <typename Map>
Result<Text> MapCharacters(const Text& text, Budget& budget, Map map) {
  RETURN_IF_ERROR(budget.Make(text.size()));
  Text result = Text::Builder();
  std::string mapped;
  text.ForEachRun([&](std::string_view run, bool trusted) {
    mapped.clear();
    for (size_t offset = 0; offset < run.size();) {
      const CodePoint next = DecodeAt(run, offset);
      map(next.value, &mapped);
      offset += next.num_bytes;
    }
    result.Append(mapped, trusted);
  });
  return result;
}

bool ContainsCodePoint(std::string_view chars, uint32_t wanted) {
  for (size_t offset = 0; offset < chars.size();) {
    const CodePoint next = DecodeAt(chars, offset);
    if (next.value == wanted) return true;
    offset += next.num_bytes;
  }
  return false;
}

Status AddPiece(const Text& text, size_t begin, size_t end, std::vector<Text>* pieces,
                Budget& budget) {
  RETURN_IF_ERROR(budget.Make(sizeof(Text)));
  pieces->push_back(text.Substr(begin, end - begin));
  return {};
}

Result<std::vector<Text>> SplitAtSpaces(const Text& text, int64_t max_splits, Budget& budget) {
  const std::string_view view = text.view();
  std::vector<Text> pieces;
  size_t offset = SkipSpaces(view);
  while (offset < view.size()) {
    if (max_splits >= 0 && static_cast<int64_t>(pieces.size()) == max_splits) {
      RETURN_IF_ERROR(AddPiece(text, offset, EndWithoutSpaces(view), &pieces, budget));
      break;
    }
    size_t end = offset;
    while (end < view.size()) {
      const CodePoint next = DecodeAt(view, end);
      if (IsSpace(next.value)) break;
      end += next.num_bytes;
    }
    RETURN_IF_ERROR(AddPiece(text, offset, end, &pieces, budget));
    offset = end + SkipSpaces(view.substr(end));
  }
  return pieces;
}

bool IsLineEnd(uint32_t cp) {
  return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
         cp == 0x2029;
}

}  // namespace

Result<Text> Strip(const Text& text, const Text* chars, Side side, Budget& budget) {
  const std::string_view view = text.view();
  size_t begin = 0, end = view.size();
  if (chars == nullptr) {
    if (side != Side::kRight) begin = SkipSpaces(view);
    if (side != Side::kLeft) end = std::max(begin, EndWithoutSpaces(view));
    RETURN_IF_ERROR(budget.Scan(begin + view.size() - end));
    return text.Substr(begin, end - begin);
  }
  while (side != Side::kRight && begin < end) {
    RETURN_IF_ERROR(budget.Scan(chars->size()));
    const CodePoint next = DecodeAt(view, begin);
    if (!ContainsCodePoint(chars->view(), next.value)) break;
    begin += next.num_bytes;
  }
  while (side != Side::kLeft && end > begin) {
    RETURN_IF_ERROR(budget.Scan(chars->size()));
    size_t start = end - 1;
    while (start > begin && (view[start] & 0xC0) == 0x80) --start;
    if (!ContainsCodePoint(chars->view(), DecodeAt(view, start).value)) break;
    end = start;
  }
  return text.Substr(begin, end - begin);
}

Result<Text> ChangeCase(const Text& text, Case to, Budget& budget) {
  return MapCharacters(text, budget,
                       [to](uint32_t cp, std::string* out) { AppendCased(to, cp, out); });
}

Result<Text> Capitalize(const Text& text, Budget& budget) {
  bool first = true;
  return MapCharacters(text, budget, [&first](uint32_t cp, std::string* out) {
    AppendCased(first ? Case::kTitle : Case::kLower, cp, out);
    first = false;
  });
}

Result<Text> TitleMethod(const Text& text, Budget& budget) {
  bool in_word = false;
  return MapCharacters(text, budget, [&in_word](uint32_t cp, std::string* out) {
    AppendCased(in_word ? Case::kLower : Case::kTitle, cp, out);
    in_word = IsCased(cp);
  });
}

Result<Text> TitleFilter(const Text& text, Budget& budget) {
  bool in_word = false;
  return MapCharacters(text, budget, [&in_word](uint32_t cp, std::string* out) {
    AppendCased(in_word ? Case::kLower : Case::kUpper, cp, out);
    in_word = !(IsSpace(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<');
  });
}

Result<Text> Replace(const Text& text, const Text& old_text, const Text& new_text,
                     int64_t max_count, Budget& budget) {
  RETURN_IF_ERROR(budget.Make(text.size()));
  const std::string_view view = text.view();
  const std::string_view wanted = old_text.view();
  Text result = Text::Builder();
  size_t copied = 0;  // Bytes of `text` already in the result.
  size_t position = 0;
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    if (wanted.empty()) {  // Between all characters, and at both ends.
      if (count > 0 && position >= view.size()) break;
      if (count > 0) position += DecodeAt(view, position).num_bytes;
    } else {
      position = view.find(wanted, position);
      if (position == std::string_view::npos) break;
    }
    RETURN_IF_ERROR(budget.Make(new_text.size() + 1));
    result.Append(text.Substr(copied, position - copied));
    result.Append(new_text);
    position += wanted.size();
    copied = position;
  }
  result.Append(text.Substr(copied, view.size() - copied));
  return result;
}

Result<std::vector<Text>> Split(const Text& text, const Text* separator, int64_t max_splits,
                                Budget& budget) {
  RETURN_IF_ERROR(budget.Scan(text.size()));
  if (separator == nullptr) return SplitAtSpaces(text, max_splits, budget);
  if (separator->empty()) return MakeError("split needs a separator that is not empty");
  std::vector<Text> pieces;
  size_t begin = 0;
  while (max_splits < 0 || static_cast<int64_t>(pieces.size()) < max_splits) {
    const size_t found = text.view().find(separator->view(), begin);
    if (found == std::string_view::npos) break;
    RETURN_IF_ERROR(AddPiece(text, begin, found, &pieces, budget));
    begin = found + separator->size();
  }
  RETURN_IF_ERROR(AddPiece(text, begin, text.size(), &pieces, budget));
  return pieces;
}

Result<std::vector<Text>> SplitFromRight(const Text& text, const Text& separator,
                                         int64_t max_splits, Budget& budget) {
  RETURN_IF_ERROR(budget.Scan(text.size()));
  if (separator.empty()) return MakeError("rsplit needs a separator that is not empty");
  std::vector<Text> pieces;
  size_t end = text.size();
  while (max_splits < 0 || static_cast<int64_t>(pieces.size()) < max_splits) {
    const size_t found = text.view().substr(0, end).rfind(separator.view());
    if (found == std::string_view::npos) break;
    RETURN_IF_ERROR(AddPiece(text, found + separator.size(), end, &pieces, budget));
    end = found;
  }
  RETURN_IF_ERROR(AddPiece(text, 0, end, &pieces, budget));
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

Result<std::vector<Text>> SplitLines(const Text& text, bool keep_ends, Budget& budget) {
  RETURN_IF_ERROR(budget.Scan(text.size()));
  const std::string_view view = text.view();
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t offset = 0; offset < view.size();) {
    const CodePoint next = DecodeAt(view, offset);
    const size_t line_end = offset;
    offset += next.num_bytes;
    if (!IsLineEnd(next.value)) continue;
    if (next.value == '\r' && offset < view.size() && view[offset] == '\n') ++offset;
    RETURN_IF_ERROR(AddPiece(text, begin, keep_ends ? offset : line_end, &lines, budget));
    begin = offset;
  }
  if (begin < view.size()) RETURN_IF_ERROR(AddPiece(text, begin, view.size(), &lines, budget));
  return lines;
}

Result<Text> Repeat(const Text& text, int64_t count, Budget& budget) {
  Text result = Text::Builder();
  if (text.empty() || count <= 0) return result;
  size_t num_bytes = 0;
  if (__builtin_mul_overflow(text.size(), static_cast<size_t>(count), &num_bytes))
    num_bytes = SIZE_MAX;
  RETURN_IF_ERROR(budget.Make(num_bytes));
  for (int64_t turn = 0; turn < count; ++turn) result.Append(text);
  return result;
}

Result<Text> Join(const std::vector<Text>& parts, const Text& separator, Budget& budget) {
  Text result = Text::Builder();
  for (size_t part_idx = 0; part_idx < parts.size(); ++part_idx) {
    RETURN_IF_ERROR(budget.Make(parts[part_idx].size() + separator.size()));
    if (part_idx > 0) result.Append(separator);
    result.Append(parts[part_idx]);
  }
  return result;
}

Result<Text> Indent(const Text& text, const Text& indent, bool first, bool blank, Budget& budget) {
  const Text newline("\n", /*trusted=*/true);
  Text terminated = text;
  RETURN_IF_ERROR(budget.Make(terminated.AppendCost(1)));
  terminated.Append(newline);
  ASSIGN_OR_RETURN(const std::vector<Text> lines,
                   SplitLines(terminated, /*keep_ends=*/false, budget));
  Text result = Text::Builder();
  for (size_t line_idx = 0; line_idx < lines.size(); ++line_idx) {
    const Text& line = lines[line_idx];
    RETURN_IF_ERROR(budget.Make(line.size() + indent.size() + 1));
    if (line_idx > 0) result.Append(newline);
    const bool indented = line_idx == 0 ? first : blank || !line.empty();
    if (indented) result.Append(indent);
    result.Append(line);
  }
  return result;
}

}  // namespace lapidary::jinja
