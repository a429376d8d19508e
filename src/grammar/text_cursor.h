// A cursor over a text, on which the parsers of this folder are built.
#pragma once

#include <cstddef>
#include <string_view>

namespace lapidary::grammar {

class TextCursor {
 protected:
  explicit TextCursor(std::string_view text) : text_(text) {}

  bool AtEnd() const { return at_ >= text_.size(); }
  // '\0' behind the end.
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace lapidary::grammar
