// How values print: Python's str, repr and json.dumps. Text keeps its provenance, piece by piece;
// the punctuation around it is ours and cannot spell a special token, so it counts as trusted.
#include <algorithm>
#include <cmath>

#include "text/float_repr.h"
#include "text/jinja/value.h"
#include "text/unicode.h"

namespace lapidary::jinja {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";

void AppendHex(uint32_t value, int digits, std::string* out) {
  for (int digit = digits - 1; digit >= 0; --digit) out->push_back(kHex[value >> (4 * digit) & 15]);
}

void AppendReprOf(uint32_t cp, char quote, std::string* out) {
  if (cp == static_cast<uint32_t>(quote) || cp == '\\') {
    out->push_back('\\');
    out->push_back(static_cast<char>(cp));
  } else if (cp == '\n') {
    *out += "\\n";
  } else if (cp == '\r') {
    *out += "\\r";
  } else if (cp == '\t') {
    *out += "\\t";
  } else if (IsPrintable(cp)) {
    AppendUtf8(cp, out);
  } else if (cp <= 0xFF || (cp & kInvalidByte)) {
    *out += "\\x";
    AppendHex(cp & 0xFF, 2, out);
  } else if (cp <= 0xFFFF) {
    *out += "\\u";
    AppendHex(cp, 4, out);
  } else {
    *out += "\\U";
    AppendHex(cp, 8, out);
  }
}

void AppendJsonOf(uint32_t cp, bool ensure_ascii, std::string* out) {
  static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
  static constexpr std::string_view kLetters = "\"\\nrtfb";
  const size_t letter = cp < 0x80 ? kEscaped.find(static_cast<char>(cp)) : std::string_view::npos;
  if (letter != std::string_view::npos) {
    out->push_back('\\');
    out->push_back(kLetters[letter]);
  } else if (cp < 0x20) {
    *out += "\\u";
    AppendHex(cp, 4, out);
  } else if (!ensure_ascii || cp < 0x7F || (cp & kInvalidByte)) {
    AppendUtf8(cp, out);
  } else if (cp == 0x7F) {
    out->push_back(0x7F);
  } else if (cp > 0xFFFF) {
    *out += "\\u";
    AppendHex(0xD800 + ((cp - 0x10000) >> 10), 4, out);
    *out += "\\u";
    AppendHex(0xDC00 + ((cp - 0x10000) & 0x3FF), 4, out);
  } else {
    *out += "\\u";
    AppendHex(cp, 4, out);
  }
}

class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(budget) {}
  Text Take() { return std::move(out_); }

  Status Put(std::string_view text) {
    RETURN_IF_ERROR(budget_.Make(text.size()));
    out_.Append(text, /*trusted=*/true);
    return {};
  }

  template <typename AppendCharacter>
  Status PutEscaped(const Text& text, AppendCharacter append) {
    Status status;
    text.ForEachRun([&](std::string_view run, bool trusted) {
      if (!status.ok()) return;
      status = budget_.Make(run.size());
      if (!status.ok()) return;
      std::string escaped;
      for (size_t offset = 0; offset < run.size();) {
        const CodePoint next = DecodeAt(run, offset);
        append(next.value, &escaped);
        offset += next.num_bytes;
      }
      out_.Append(escaped, trusted);
    });
    return status;
  }

  Status Repr(const Value& value) {
    RETURN_IF_ERROR(budget_.Step());
    if (value.IsUndefined()) return Put("Undefined");
    if (value.IsNone()) return Put("None");
    if (const bool* flag = value.As<bool>()) return Put(*flag ? "True" : "False");
    if (const Int* number = value.As<Int>()) return Put(fmt::format("{}", *number));
    if (const double* number = value.As<double>()) return Put(FloatRepr(*number));
    if (const Text* text = value.AsText()) {
      const std::string_view view = text->view();
      const bool double_quotes =
          view.find('\'') != std::string_view::npos && view.find('"') == std::string_view::npos;
      const char quote = double_quotes ? '"' : '\'';
      RETURN_IF_ERROR(Put({&quote, 1}));
      RETURN_IF_ERROR(PutEscaped(
          *text, [quote](uint32_t cp, std::string* out) { AppendReprOf(cp, quote, out); }));
      return Put({&quote, 1});
    }
    if (const List* list = value.AsList()) return ReprList(*list);
    if (const Dict* dict = value.AsDict()) {
      RETURN_IF_ERROR(Put("{"));
      bool first = true;
      for (const auto& [key, element] : dict->entries()) {
        if (!first) RETURN_IF_ERROR(Put(", "));
        first = false;
        RETURN_IF_ERROR(Repr(key));
        RETURN_IF_ERROR(Put(": "));
        RETURN_IF_ERROR(Repr(element));
      }
      return Put("}");
    }
    return MakeError("a {} cannot be printed", value.TypeName());
  }

  Status Json(const Value& value, const JsonStyle& style, int level) {
    RETURN_IF_ERROR(budget_.Step());
    if (value.IsNone()) return Put("null");
    if (const bool* flag = value.As<bool>()) return Put(*flag ? "true" : "false");
    if (const Int* number = value.As<Int>()) return Put(fmt::format("{}", *number));
    if (const double* number = value.As<double>()) {
      if (std::isnan(*number)) return Put("NaN");
      if (std::isinf(*number)) return Put(*number > 0 ? "Infinity" : "-Infinity");
      return Put(FloatRepr(*number));
    }
    if (const Text* text = value.AsText()) return JsonString(*text, style);
    if (const List* list = value.AsList();
        list != nullptr && (list->kind == List::Kind::kList || list->kind == List::Kind::kTuple)) {
      if (list->items.empty()) return Put("[]");
      RETURN_IF_ERROR(Put("["));
      for (size_t item_idx = 0; item_idx < list->items.size(); ++item_idx) {
        RETURN_IF_ERROR(JsonBreak(style, level + 1, /*is_first=*/item_idx == 0));
        RETURN_IF_ERROR(Json(list->items[item_idx], style, level + 1));
      }
      RETURN_IF_ERROR(JsonNewline(style, level));
      return Put("]");
    }
    if (const Dict* dict = value.AsDict()) return JsonDict(*dict, style, level);
    return MakeError("a {} cannot be written as JSON", value.TypeName());
  }

 private:
  Status ReprList(const List& list) {
    static constexpr std::pair<std::string_view, std::string_view> kBrackets[] = {
        {"[", "]"},
        {"(", ")"},
        {},
        {},
        {"dict_keys([", "])"},
        {"dict_values([", "])"},
        {"dict_items([", "])"}};
    if (list.kind == List::Kind::kRange) {
      const auto& [start, stop, step, length] = list.range;
      return Put(step == 1 ? fmt::format("range({}, {})", start, stop)
                           : fmt::format("range({}, {}, {})", start, stop, step));
    }
    if (list.kind == List::Kind::kGenerator) {
      return MakeError("the lazy result of a filter cannot be printed; add `| list` or `| join`");
    }
    const auto& [open, close] = kBrackets[static_cast<int>(list.kind)];
    RETURN_IF_ERROR(Put(open));
    for (size_t item_idx = 0; item_idx < list.items.size(); ++item_idx) {
      if (item_idx > 0) RETURN_IF_ERROR(Put(", "));
      RETURN_IF_ERROR(Repr(list.items[item_idx]));
    }
    if (list.kind == List::Kind::kTuple && list.items.size() == 1) RETURN_IF_ERROR(Put(","));
    return Put(close);
  }

  Status JsonString(const Text& text, const JsonStyle& style) {
    RETURN_IF_ERROR(Put("\""));
    RETURN_IF_ERROR(PutEscaped(text, [&style](uint32_t cp, std::string* out) {
      AppendJsonOf(cp, style.ensure_ascii, out);
    }));
    return Put("\"");
  }

  Status JsonNewline(const JsonStyle& style, int level) {
    if (!style.indent) return {};
    RETURN_IF_ERROR(Put("\n"));
    for (int depth = 0; depth < level; ++depth) {
      RETURN_IF_ERROR(budget_.Make(style.indent->size()));
      out_.Append(*style.indent);
    }
    return {};
  }

  Status JsonBreak(const JsonStyle& style, int level, bool is_first) {
    if (!is_first) RETURN_IF_ERROR(Put(style.item_separator));
    return JsonNewline(style, level);
  }

  Status JsonDict(const Dict& dict, const JsonStyle& style, int level) {
    if (dict.entries().empty()) return Put("{}");
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& entry : dict.entries()) order.push_back(&entry);
    if (style.sort_keys) {
      for (const auto* entry : order) {
        if (entry->first.AsText() == nullptr) return MakeError("only text keys can be sorted");
      }
      std::stable_sort(order.begin(), order.end(), [](const auto* left, const auto* right) {
        return left->first.AsText()->view() < right->first.AsText()->view();
      });
    }
    RETURN_IF_ERROR(Put("{"));
    for (size_t entry_idx = 0; entry_idx < order.size(); ++entry_idx) {
      const auto& [key, element] = *order[entry_idx];
      RETURN_IF_ERROR(JsonBreak(style, level + 1, /*is_first=*/entry_idx == 0));
      if (const Text* text = key.AsText()) {
        RETURN_IF_ERROR(JsonString(*text, style));
      } else {
        RETURN_IF_ERROR(Put("\""));
        RETURN_IF_ERROR(Json(key, style, level));
        RETURN_IF_ERROR(Put("\""));
      }
      RETURN_IF_ERROR(Put(style.key_separator));
      RETURN_IF_ERROR(Json(element, style, level + 1));
    }
    RETURN_IF_ERROR(JsonNewline(style, level));
    return Put("}");
  }

  Budget& budget_;
  Text out_ = Text::Builder();
};

}  // namespace

Result<Text> ToRepr(const Value& value, Budget& budget) {
  Printer printer(budget);
  RETURN_IF_ERROR(printer.Repr(value));
  return printer.Take();
}

Result<Text> ToText(const Value& value, Budget& budget) {
  if (const Text* text = value.AsText()) return *text;
  if (value.IsUndefined()) return Text();
  return ToRepr(value, budget);
}

Result<Text> ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  Printer printer(budget);
  RETURN_IF_ERROR(printer.Json(value, style, 0));
  return printer.Take();
}

}  // namespace lapidary::jinja
