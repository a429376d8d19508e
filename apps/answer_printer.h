// Shows an answer while it is generated: the text on stdout; thoughts dimmed on a terminal, on
// stderr elsewhere; tool calls on a line each.
#pragma once

#include <string>
#include <string_view>

#include "text/output_parser.h"

namespace lapidary {

class AnswerPrinter {
 public:
  AnswerPrinter();

  void Print(const OutputEvent& event);
  // Ends the last line.
  void Finish();

 private:
  enum class Section { kNone, kThought, kContent, kCall };

  void Enter(Section section);
  void Write(std::string_view text);
  std::FILE* file() const;

  const bool is_terminal_;
  Section section_ = Section::kNone;
  bool at_line_start_ = true;  // of the section's file
  std::string call_name_;
};

// Without the characters that steer a terminal.
std::string WithoutControls(std::string_view text);

// A remark of the program's own, on stderr: dimmed on a terminal, a line by itself.
void PrintNotice(std::string_view text);

}  // namespace lapidary
