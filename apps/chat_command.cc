// `lapidary chat`: a conversation on the terminal.
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "apps/answer_printer.h"
#include "apps/chat_session.h"
#include "apps/commands.h"
#include "apps/constraint_flags.h"
#include "apps/interrupts.h"
#include "apps/line_reader.h"
#include "apps/model_flags.h"
#include "apps/sampling_flags.h"
#include "apps/size_words.h"
#include "apps/suggestion.h"
#include "base/read_file.h"
#include "session/bundled_models.h"

namespace lapidary {
namespace {

constexpr const char* kCommands =
    "  /system TEXT     instructions for the model; without a text, none\n"
    "  /think [on|off]  let the model think before it answers\n"
    "  /image FILE      show a JPEG, PNG or WebP picture with the next message\n"
    "  /audio FILE      let the model hear a WAV, FLAC, Ogg or MP3 file with it\n"
    "  /retry           answer the last message again\n"
    "  /reset           begin a new conversation\n"
    "  /save FILE       write the messages as JSON\n"
    "  /load FILE       go on with messages that were saved\n"
    "  /help            this list\n"
    "  /exit            leave (also /quit and Ctrl-D)\n"
    "Ctrl-C stops an answer; twice at an empty prompt, it leaves.";
constexpr const char* kLeaveHint = "(Ctrl-C again leaves, as do Ctrl-D and /exit)";

// Images and audio are bounded by the context alone.
constexpr int kMostMedia = 1 << 20;

struct ChatFlags {
  ModelFlags model;
  std::string system_prompt;
  bool think = false;
  int32_t context = 8192;
  int32_t max_tokens = 0;
  bool stats = false;
  SamplingFlags sampling;
  ConstraintFlags form;
};

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

Status Save(const Conversation& conversation, const std::string& path) {
  if (path.empty()) return MakeError("/save needs a file name");
  std::ofstream file(path);
  file << conversation.Messages().dump(2) << "\n";
  file.flush();
  if (!file) return MakeError("{} cannot be written", path);
  return {};
}

Status Load(const std::string& path, ChatSession& session) {
  if (path.empty()) return MakeError("/load needs a file name");
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
  const auto messages = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (messages.is_discarded()) return MakeError("{} is not valid JSON", path);
  if (const Status loaded = session.Load(messages); !loaded.ok()) {
    return MakeError("{}: {}", path, loaded.error().message);
  }
  return {};
}

// `/name rest`. Returns what to tell the user.
Result<std::string> RunCommand(std::string_view name, std::string_view rest, ChatSession& session) {
  Conversation& conversation = session.conversation();
  if (name == "/help") return std::string(kCommands);
  if (name == "/reset") {
    session.Reset();
    return std::string("a new conversation");
  }
  if (name == "/image" || name == "/audio") {
    if (rest.empty()) return MakeError("{} needs a file name", name);
    return session.Attach(name == "/image" ? MediaKind::kImage : MediaKind::kAudio,
                          std::string(rest));
  }
  if (name == "/system") {
    conversation.set_system_prompt(std::string(rest));
    return std::string(rest.empty() ? "no system prompt" : "the system prompt is set");
  }
  if (name == "/think") {
    if (!rest.empty() && rest != "on" && rest != "off") return MakeError("/think is on or off");
    conversation.set_thinking(rest.empty() ? !conversation.thinking() : rest == "on");
    return fmt::format("thinking is {}", conversation.thinking() ? "on" : "off");
  }
  if (name == "/save") {
    RETURN_IF_ERROR(Save(conversation, std::string(rest)));
    return fmt::format("saved to {}", rest);
  }
  if (name == "/load") {
    RETURN_IF_ERROR(Load(std::string(rest), session));
    return fmt::format("loaded {} messages of {}", conversation.Messages().size(), rest);
  }
  return MakeError("there is no {}; /help lists the commands", name);
}

// One line: a command or a message. False when the user wants to leave.
bool HandleLine(std::string_view line, ChatSession& session) {
  line = Trim(line);
  if (line.empty()) return true;
  if (const Status status = CheckUtf8(line, "the line"); !status.ok()) {
    PrintNotice(status.error().message);
    return true;
  }
  const bool is_pasted = line.find('\n') != std::string_view::npos;
  if (line.front() != '/' || is_pasted) {
    session.Answer(std::string(line));
    return true;
  }
  const size_t blank = std::min(line.find_first_of(" \t"), line.size());
  const std::string_view name = line.substr(0, blank);
  if (name == "/exit" || name == "/quit") return false;
  if (name == "/retry") {
    if (!session.AnswerAgain()) PrintNotice("there is no message to answer again");
    return true;
  }
  const auto told = RunCommand(name, Trim(line.substr(blank)), session);
  PrintNotice(told.ok() ? *told : told.error().message);
  return true;
}

void Converse(LineReader& reader, ChatSession& session) {
  bool hinted = false;
  while (true) {
    std::string line;
    const LineReader::Outcome outcome = reader.Read(&line);
    if (outcome == LineReader::Outcome::kEnd) return;
    if (outcome == LineReader::Outcome::kInterrupted) {
      if (!line.empty()) continue;
      if (hinted) return;
      PrintNotice(kLeaveHint);
    } else if (!HandleLine(line, session)) {
      return;
    }
    hinted = outcome == LineReader::Outcome::kInterrupted;
  }
}

// An interrupt that reaches the program as a signal: one during an answer, or one sent to a reader
// that cannot see keys, where the second in a row leaves.
class SignalPolicy {
 public:
  SignalPolicy(ChatSession& session, const LineReader& reader)
      : session_(session), reader_(reader) {}

  void operator()() {
    if (session_.Interrupt()) {
      num_idle_ = 0;
    } else if (!reader_.is_terminal()) {
      if (++num_idle_ > 1) ExitInterrupted();
      PrintNotice(kLeaveHint);
    }
  }

 private:
  ChatSession& session_;
  const LineReader& reader_;
  int num_idle_ = 0;
};

Status Chat(const ChatFlags& flags) {
  ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open(flags.model.model));
  if (!files.text->tokenizer.ok()) return files.text->tokenizer.error();
  if (!files.text->chat_template.ok()) return files.text->chat_template.error();
  const ModelPlan& plan = files.description.plan;
  RETURN_IF_ERROR(CheckUtf8(flags.system_prompt, "--system-prompt"));
  ChatOptions options;
  options.context = std::min(flags.context, plan.max_context);
  if (flags.max_tokens > 0) options.answer.max_tokens = flags.max_tokens;
  options.stats = flags.stats || isatty(STDERR_FILENO) == 1;
  ASSIGN_OR_RETURN(options.answer.sampling,
                   flags.sampling.Over(files.text->defaults.sampling, plan.vocab_size));
  ASSIGN_OR_RETURN(options.answer.constraint, flags.form.Read());
  if (options.answer.constraint) {
    // A form that cannot be had is refused before the weights are read.
    options.compiler = std::make_shared<ConstraintCompiler>(files.text, plan.vocab_size);
    const auto compiled = options.compiler->Compile(*options.answer.constraint);
    if (!compiled.ok()) return MakeError("{}: {}", flags.form.name(), compiled.error().message);
  }

  const std::string model_name = files.description.ShortName();
  Interrupts interrupts;
  // Twice the room of a conversation, so that its last turn stays in the prefix cache.
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> model,
      flags.model.LoadSession(std::move(files), options.context, /*num_sequences=*/2,
                              /*max_num_seqs=*/0, {.images = kMostMedia, .audio = kMostMedia}));
  const std::unique_ptr<LineReader> reader = LineReader::ForStandardInput(">>> ");
  ChatSession session(*model, options);
  session.conversation().set_system_prompt(flags.system_prompt);
  session.conversation().set_thinking(flags.think);
  interrupts.set_handler(SignalPolicy(session, *reader));
  if (reader->is_terminal()) {
    PrintNotice(fmt::format("{}: {} tokens of context; /help lists the commands", model_name,
                            options.context));
  }
  Converse(*reader, session);
  interrupts.set_handler(ExitInterrupted);
  return {};
}

// Without a name, on a terminal: one line on what runs, and on what would be of more use here.
Status FindModelOrSuggest(ModelFlags& flags) {
  const bool is_named = !flags.model.empty() || !flags.hf_repo.empty();
  if (!is_named && isatty(STDIN_FILENO) == 1) {
    PrintNotice(fmt::format("{} is a toy of 7 million parameters that comes along{}", kDefaultModel,
                            SuggestedCommand("chat")));
    flags.model = kDefaultModel;
  }
  return flags.Find(/*media=*/true, /*drafts=*/true);
}

}  // namespace

void AddChatCommand(CommandLine& command_line) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command =
      command_line.Add("chat", "Talk with a model on the terminal", [flags]() -> Status {
        RETURN_IF_ERROR(FindModelOrSuggest(flags->model));
        return Chat(*flags);
      });
  constexpr const char* kGroup = "Conversation";
  command->add_option("--system-prompt", flags->system_prompt, "Instructions for the model")
      ->group(kGroup);
  command->add_flag("--think", flags->think, "Let the model think before it answers")
      ->group(kGroup);
  command->add_option("--context", flags->context, "Most tokens of a conversation")
      ->group(kGroup)
      ->transform(SizeWords())
      ->check(CLI::Range(2, 1 << 28))
      ->capture_default_str();
  command
      ->add_option("--max-tokens", flags->max_tokens,
                   "Most tokens of an answer; 0: what the context leaves")
      ->group(kGroup)
      ->transform(SizeWords())
      ->check(CLI::Range(0, 1 << 28))
      ->capture_default_str();
  command
      ->add_flag("--stats", flags->stats,
                 "Tell tokens and speed after each answer (always on a terminal)")
      ->group(kGroup);
  flags->form.AddTo(*command);
  flags->sampling.AddTo(*command);
  flags->model.AddTo(*command);
  flags->model.lora.AddTo(*command);
  flags->model.drafting.AddTo(*command);
  command->footer(fmt::format(
      "In the conversation:\n{}\n\nWhere input is not a terminal, each of "
      "its lines is a message or a command. On one, lines are remembered in "
      "~/.local/state/lapidary/chat_history, or in the file that LAPIDARY_HISTORY names; "
      "if it is empty, nowhere.",
      kCommands));
}

}  // namespace lapidary
