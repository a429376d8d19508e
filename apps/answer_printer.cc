#include "apps/answer_printer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace lapidary {
namespace {

constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";

void WriteTo(std::FILE* file, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

std::string WithoutControls(std::string_view text) {
  std::string shown;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    const auto byte = static_cast<unsigned char>(text[pos]);
    const auto next = static_cast<unsigned char>(pos + 1 < text.size() ? text[pos + 1] : '\0');
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) continue;
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // C1: terminals obey them as well.
      ++pos;
      continue;
    }
    shown += text[pos];
  }
  return shown;
}

AnswerPrinter::AnswerPrinter() : is_terminal_(isatty(STDOUT_FILENO) == 1) {}

std::FILE* AnswerPrinter::file() const {
  return section_ == Section::kThought && !is_terminal_ ? stderr : stdout;
}

void AnswerPrinter::Print(const OutputEvent& event) {
  switch (event.kind) {
    case OutputEvent::Kind::kReasoning:
      Enter(Section::kThought);
      Write(event.text);
      break;
    case OutputEvent::Kind::kContent:
      Enter(Section::kContent);
      Write(event.text);
      break;
    case OutputEvent::Kind::kToolCallBegin:
      call_name_ = event.text;
      break;
    case OutputEvent::Kind::kToolCallArguments:
      Enter(Section::kNone);  // Each call begins a line.
      Enter(Section::kCall);
      Write(fmt::format("[tool call] {} {}", call_name_, event.text));
      break;
    case OutputEvent::Kind::kToolCallEnd:
    case OutputEvent::Kind::kToolCallCancel:
      break;
  }
}

void AnswerPrinter::Finish() { Enter(Section::kNone); }

void AnswerPrinter::Enter(Section section) {
  if (section == section_) return;
  if (section_ == Section::kThought && is_terminal_) WriteTo(stdout, kPlain);
  if (!at_line_start_) WriteTo(file(), "\n");
  at_line_start_ = true;
  section_ = section;
  if (section_ == Section::kThought && is_terminal_) WriteTo(stdout, kDim);
}

void AnswerPrinter::Write(std::string_view text) {
  if (text.empty()) return;
  WriteTo(file(), is_terminal_ ? WithoutControls(text) : std::string(text));
  at_line_start_ = text.ends_with('\n');
}

void PrintNotice(std::string_view text) {
  const bool is_terminal = isatty(STDERR_FILENO) == 1;
  WriteTo(stderr,
          is_terminal ? fmt::format("{}{}{}\n", kDim, text, kPlain) : fmt::format("{}\n", text));
}

}  // namespace lapidary
