#include "apps/line_reader.h"

#include <histedit.h>
#include <langinfo.h>
#include <sys/stat.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string_view>

namespace lapidary {
namespace {

constexpr int kHistoryLines = 1000;

// Terminals put these around what is pasted, if they are asked to.
constexpr const char* kAskForPastes = "\x1b[?2004h";
constexpr const char* kNoMorePastes = "\x1b[?2004l";
constexpr const char* kPasteBegins = "\\e[200~";
constexpr std::wstring_view kPasteEnds = L"\x1b[201~";

// Where lines are remembered; empty: nowhere.
std::filesystem::path HistoryFile() {
  const auto variable = [](const char* name) -> std::filesystem::path {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (std::getenv("LAPIDARY_HISTORY") != nullptr) return variable("LAPIDARY_HISTORY");
  std::filesystem::path state = variable("XDG_STATE_HOME");
  if (state.empty() && !variable("HOME").empty()) state = variable("HOME") / ".local" / "state";
  return state.empty() ? state : state / "lapidary" / "chat_history";
}

class PlainReader : public LineReader {
 public:
  bool is_terminal() const override { return false; }
  Outcome Read(std::string* line) override {
    return std::getline(std::cin, *line) ? Outcome::kLine : Outcome::kEnd;
  }
};

class EditingReader : public LineReader {
 public:
  explicit EditingReader(std::string prompt) : prompt_(std::move(prompt)) {
    // libedit reads characters by the locale; plain "C" would take UTF-8 apart.
    std::setlocale(LC_CTYPE, "");
    if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) history(history_, &event, H_LOAD, history_file_.c_str());
    edit_ = el_init("lapidary", stdin, stdout, stderr);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &Prompt);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_SIGNAL, 1);  // The terminal is put back when a signal ends the program.
    el_set(edit_, EL_HIST, history, history_);
    // Ctrl-C and Ctrl-Z are keys while a line is edited, and signals otherwise.
    el_set(edit_, EL_SETTY, "-d", "-isig", nullptr);
    // el_set would copy the names and never free them; el_wset keeps these.
    el_wset(edit_, EL_ADDFN, L"interrupt", L"Give the line up", &OnInterrupt);
    el_set(edit_, EL_BIND, "^C", "interrupt", nullptr);
    el_wset(edit_, EL_ADDFN, L"suspend", L"Suspend the program", &OnSuspend);
    el_set(edit_, EL_BIND, "^Z", "suspend", nullptr);
    el_wset(edit_, EL_ADDFN, L"paste", L"Take what is pasted as text", &OnPaste);
    el_set(edit_, EL_BIND, kPasteBegins, "paste", nullptr);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  }
  ~EditingReader() override {
    el_end(edit_);
    history_end(history_);
  }

  bool is_terminal() const override { return true; }

  Outcome Read(std::string* line) override {
    interrupted_ = false;
    int num_bytes = 0;
    Show(kAskForPastes);
    const char* text = el_gets(edit_, &num_bytes);
    Show(kNoMorePastes);
    *line = text == nullptr || num_bytes < 0 ? "" : std::string(text);
    if (line->ends_with('\n')) line->pop_back();
    if (interrupted_) return Outcome::kInterrupted;
    if (text == nullptr || num_bytes <= 0) {
      std::fputs("\n", stdout);
      return Outcome::kEnd;
    }
    if (line->find_first_not_of(" \t") != std::string::npos) {
      HistEvent event;
      history(history_, &event, H_ENTER, line->c_str());
      SaveHistory();
    }
    return Outcome::kLine;
  }

 private:
  // At every line: a signal may end the program. What is said is nobody else's to read.
  void SaveHistory() {
    if (history_file_.empty()) return;
    std::error_code ignored;  // then nothing is remembered
    std::filesystem::create_directories(history_file_.parent_path(), ignored);
    const mode_t mask = umask(S_IRWXG | S_IRWXO);
    HistEvent event;
    history(history_, &event, H_SAVE, history_file_.c_str());
    umask(mask);
  }

  static void Show(const char* text) {
    std::fputs(text, stdout);
    std::fflush(stdout);
  }
  static EditingReader* Self(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return static_cast<EditingReader*>(self);
  }
  static char* Prompt(EditLine* edit) { return Self(edit)->prompt_.data(); }
  static unsigned char OnInterrupt(EditLine* edit, wint_t /*key*/) {
    Self(edit)->interrupted_ = true;
    Show("^C\n");
    return CC_NEWLINE;
  }
  // Its line breaks end no message; what a key would do is not done.
  static unsigned char OnPaste(EditLine* edit, wint_t /*key*/) {
    std::wstring text;
    wchar_t character = 0;
    while (!text.ends_with(kPasteEnds) && el_wgetc(edit, &character) == 1) {
      text += character == L'\r' ? L'\n' : character;
    }
    if (text.ends_with(kPasteEnds)) text.resize(text.size() - kPasteEnds.size());
    std::erase_if(text,
                  [](wchar_t c) { return (c < L' ' && c != L'\n' && c != L'\t') || c == 0x7f; });
    while (text.ends_with(L'\n')) text.pop_back();
    return el_winsertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }
  static unsigned char OnSuspend(EditLine* /*edit*/, wint_t /*key*/) {
    std::raise(SIGTSTP);  // libedit's handler gives the terminal back meanwhile.
    return CC_REFRESH;
  }

  std::string prompt_;
  const std::filesystem::path history_file_ = HistoryFile();
  History* history_;
  EditLine* edit_;
  bool interrupted_ = false;
};

}  // namespace

std::unique_ptr<LineReader> LineReader::ForStandardInput(std::string prompt) {
  if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
    return std::make_unique<EditingReader>(std::move(prompt));
  }
  return std::make_unique<PlainReader>();
}

}  // namespace lapidary
