// A conversation with a model on the terminal, turn by turn.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "front/conversation.h"
#include "front/prompt.h"
#include "request/prepare_request.h"
#include "request/text_stream.h"
#include "session/session.h"

namespace lapidary {

struct ChatOptions {
  int32_t context = 0;  // most tokens of the conversation
  // Of every answer; turn N draws with seed + N. Without max_tokens it has what the context leaves.
  AnswerRequest answer;
  std::shared_ptr<ConstraintCompiler> compiler = {};  // of the form of answers, if they have one
  bool stats = false;                                 // tokens and speed after each answer
};

class ChatSession {
 public:
  // `session`, whose model must have a tokenizer and a template, must outlive this.
  ChatSession(Session& session, ChatOptions options);

  Conversation& conversation() { return conversation_; }

  // Reads an image or audio that goes with the next message. Returns what to tell the user.
  Result<std::string> Attach(MediaKind kind, const std::string& path);
  // Forgets every turn and what was attached.
  void Reset();
  // Conversation::Load; what was attached is forgotten.
  Status Load(const nlohmann::ordered_json& messages);

  // Asks, and prints the answer as it comes. What goes wrong is said and leaves the conversation as
  // it was.
  void Answer(const std::string& message);
  // The last message once more, with what was attached to it; false when there is none.
  bool AnswerAgain();

  // Stops the answer there is, from any thread; false when there is none.
  bool Interrupt();

 private:
  // False when it took the question back: the answer was stopped before its first word.
  Result<bool> TryAnswer(const PromptMedia& media);
  Result<PreparedRequest> Prepare(PreparedPrompt prompt) const;
  // Prints and parses until the request ends; returns its last event.
  RequestEvent Follow(TextStream& stream, ParsedOutput& output);
  void Report(const RequestEvent& last, int32_t max_new_tokens) const;

  // The request an interrupt ends; null while there is none to end.
  void set_current(const TextStream* stream);
  void set_answering(bool answering);

  Session& session_;
  const ChatOptions options_;
  Conversation conversation_;
  PromptMedia media_;     // of all turns so far
  PromptMedia attached_;  // of the next one
  uint64_t num_turns_ = 0;

  std::mutex mutex_;  // guards what an interrupt sees
  bool answering_ = false;
  bool interrupted_ = false;
  const TextStream* current_ = nullptr;
};

}  // namespace lapidary
