// Lines from the user: edited, with a history, on a terminal; plain where input is a file or a
// pipe.
#pragma once

#include <memory>
#include <string>

namespace lapidary {

class LineReader {
 public:
  enum class Outcome {
    kLine,
    kInterrupted,  // Ctrl-C; `line` is what had been typed
    kEnd,          // Ctrl-D or the end of the input
  };

  // `prompt` is shown on terminals.
  static std::unique_ptr<LineReader> ForStandardInput(std::string prompt);
  virtual ~LineReader() = default;

  virtual bool is_terminal() const = 0;
  // The line comes without its newline; one that was pasted may have others inside.
  virtual Outcome Read(std::string* line) = 0;
};

}  // namespace lapidary
