// Evaluation data from outside: CSV, and items of the Pebble set with answers to judge. The first
// byte chooses.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "eval/csv.h"
#include "eval/pebble_judge.h"

namespace lapidary {
namespace {

std::string Quoted(const CsvRow& row) {
  std::string line;
  for (const std::string& field : row) {
    line += line.empty() ? "\"" : ",\"";
    for (const char c : field) line.append(c == '"' ? 2 : 1, c);
    line += '"';
  }
  return line + "\n";
}

// Rows written with every field in quotes are read back as they were.
void CheckCsv(std::string_view text) {
  const auto rows = ParseCsv(text, "input");
  if (!rows.ok()) return;
  std::string written;
  for (const CsvRow& row : *rows) {
    CHECK(!row.empty());
    written += Quoted(row);
  }
  const auto again = ParseCsv(written, "written");
  CHECK(again.ok()) << again.error().message;
  CHECK(*again == *rows);
}

// An item on the first line, an answer on the others.
void CheckJudge(std::string_view text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view answer = text.substr(std::min(end + 1, text.size()));
  CHECK_LE(TakeApart(answer).content.size(), answer.size());
  const auto item = PebbleItem::Parse(text.substr(0, end), "input");
  if (item.ok()) IsRightAnswer(*item, answer);
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.empty()) return 0;
  if (text[0] == 'c') {
    lapidary::CheckCsv(text.substr(1));
  } else {
    lapidary::CheckJudge(text.substr(1));
  }
  return 0;
}
