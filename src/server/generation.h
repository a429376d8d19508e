// One request being answered: submits its sequences, and turns their tokens into the response.
#pragma once

#include <chrono>
#include <memory>
#include <unordered_map>
#include <vector>

#include "request/prepare_request.h"
#include "server/answer_format.h"
#include "server/answer_memory.h"
#include "server/http_types.h"
#include "server/metrics.h"
#include "server/prompt_echo.h"
#include "server/served_model.h"
#include "server/worker_pool.h"
#include "session/session.h"

namespace lapidary {

// A choice that goes on behind tokens its client has.
struct ResumedChoice {
  ChoiceStream stream;
  std::optional<ChoiceDelta::ToolCall> open_call = {};
};

// A request whose prompts are ready to run.
struct GenerationJob {
  std::unique_ptr<AnswerFormat> format;
  GenerationRequest request;
  std::shared_ptr<const grammar::CompiledGrammar> grammar;  // of the request's constraint
  std::optional<grammar::Constraint> form;                  // is still to be compiled to it
  std::string form_field;                                   // of the request, which asks for it
  // Of a request that goes on with an answer: where grammar and text stand behind its tokens.
  std::shared_ptr<const grammar::Matcher> matcher;
  std::shared_ptr<ResumedChoice> resumed;
  struct Prompt {
    Request request;       // complete but for grammar and matcher
    PromptEcho echo = {};  // if asked for

    const std::vector<int32_t>& ids() const { return request.prompt.ids; }
  };
  std::vector<Prompt> prompts;
  AnswerReaderOptions reader;
  std::chrono::steady_clock::time_point arrival;
  size_t num_stored_bytes = 0;        // of the conversation that is stored with the answer
  std::shared_ptr<ByteLease> memory;  // holds NumBytes(); may be null

  // What is kept until the answer is complete: prompts, here and in each of their sequences, the
  // rows of media, the echo.
  size_t NumBytes() const;

  ChoiceStream MakeStream(const ServedModel& model, const Prompt& prompt) const;
  // Reads the tokens that the request goes on from. An error when the answer ended with them.
  ApiStatus ReplayGenerated(const ServedModel& model);
};

// Lives until the engine has ended all of its sequences. Everything runs on the responder's strand.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // The references must outlive the engine's last event. Large answers are written on a thread of
  // `workers`; what is kept of one until it is sent is of `memory`.
  Generation(Session& session, const ServedModel& model, ServerMetrics& metrics,
             WorkerPool& workers, std::shared_ptr<AnswerMemory> memory, GenerationJob job,
             std::shared_ptr<Responder> responder);

  void Start();

 private:
  using Clock = std::chrono::steady_clock;

  struct Choice {
    RequestHandle handle;  // released with the last event
    ChoiceStream stream;
    ChoiceDelta unsent = {};                // all of it, when not streaming
    std::optional<FinishInfo> finish = {};  // no more text comes
    bool begun = false;                     // the stream has told of its first token
    bool finish_sent = false;
    size_t num_bytes = 0;  // of `unsent`, as counted
    std::optional<Clock::time_point> last_token = {};
  };

  // An error when the engine refuses one of the prompts; none of them runs then.
  ApiStatus Submit();
  // The choice begins behind what its client has of it.
  void GoOn(Choice& choice);
  // The prompt's logprobs are complete: its choices begin with the echo.
  void StartEcho(size_t prompt_idx);
  void TakePromptLogprobs(const RequestEvent& event, size_t prompt_idx);
  void OnEvent(const RequestEvent& event);
  void TakeTokens(const RequestEvent& event, Choice& choice);
  // What the engine says of a request that it could not answer.
  void FailAsEngine(const RequestEvent& event);
  void RecordTokens(const RequestEvent& event, Choice& choice);
  void RecordEnd(const RequestEvent& event, const Choice& choice);
  void SendChunk(Choice& choice, bool has_tokens);
  void SendEvents(const ServerEvents& events);
  void SendEnd();
  void SendWhole(std::vector<FinishedChoice> choices);
  void CountBytes(Choice& choice);
  // Takes memory for what is kept now, or fails the request.
  void CountAllBytes();
  // Nobody will read it any more.
  void DropAnswer();
  void Fail(const ApiError& error);
  // Instead of an answer.
  void SendError(const ApiError& error);
  void CancelAll();
  double SecondsSinceArrival() const;

  Session& session_;
  const ServedModel& model_;
  ServerMetrics& metrics_;
  WorkerPool& workers_;
  const std::shared_ptr<AnswerLease> memory_;
  const GenerationJob job_;
  const std::shared_ptr<Responder> responder_;
  std::vector<Choice> choices_;
  std::vector<std::vector<SampledToken>> prompt_logprobs_;  // by prompt, from the second token on
  std::unordered_map<RequestId, size_t> choice_of_;
  AdapterTable::Use adapter_;  // that answers, if any
  Usage usage_;
  size_t num_ended_ = 0;
  size_t num_choice_bytes_ = 0;
  bool answered_ = false;  // completely, or the client has gone
};

}  // namespace lapidary
