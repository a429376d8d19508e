#include "eval/csv.h"

namespace lapidary {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Reads one field after the other; the borders between them are left to the caller.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  bool at_end() const { return at_ == text_.size(); }
  bool at_line_end() const { return at_end() || text_[at_] == '\n' || text_[at_] == '\r'; }

  // True when a comma was there: another field follows.
  bool SkipComma() {
    if (at_end() || text_[at_] != ',') return false;
    ++at_;
    return true;
  }
  void SkipLineEnd() {
    if (!at_end() && text_[at_] == '\r') ++at_;
    if (!at_end() && text_[at_] == '\n') ++at_;
    ++line_;
  }

  Result<std::string> Field() {
    if (!at_end() && text_[at_] == '"') return QuotedField();
    const size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    std::string field(text_.substr(at_, end - at_));
    at_ = end;
    return field;
  }

 private:
  Result<std::string> QuotedField() {
    const int first_line = line_;
    std::string field;
    ++at_;
    while (true) {
      const size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos) {
        return MakeError("{}: line {}: a field in quotes has no closing quote", name_, first_line);
      }
      const std::string_view part = text_.substr(at_, quote - at_);
      for (const char c : part) line_ += c == '\n';
      field += part;
      at_ = quote + 1;
      if (at_end() || text_[at_] != '"') break;
      field += '"';
      ++at_;
    }
    if (!at_line_end() && text_[at_] != ',') {
      return MakeError("{}: line {}: text after the closing quote of a field", name_, line_);
    }
    return field;
  }

  const std::string_view text_;
  const std::string_view name_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

Result<std::vector<CsvRow>> ParseCsv(std::string_view text, std::string_view name) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  CsvReader reader(text, name);
  std::vector<CsvRow> rows;
  while (!reader.at_end()) {
    if (reader.at_line_end()) {
      reader.SkipLineEnd();
      continue;
    }
    CsvRow& row = rows.emplace_back();
    do {
      ASSIGN_OR_RETURN(row.emplace_back(), reader.Field());
    } while (reader.SkipComma());
    reader.SkipLineEnd();
  }
  return rows;
}

}  // namespace lapidary
