// A loaded model: prompts or messages in, events out. The server and the commands all go through
// here, and whoever uses Lapidary as a library begins here.
//
//   ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open("models/pebble"));
//   ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Load(std::move(files), {}));
//   ASSIGN_OR_RETURN(ChatPrompt prompt, EncodeChatPrompt(session->text(), conversation.Input()));
//   ASSIGN_OR_RETURN(RequestStream answer, session->Start({.prompt = std::move(prompt)}));
//
// Every method may be called from many threads at once. Requests run together; each ends with
// exactly one event that carries a finish reason, and with its handle at the latest.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "load/load_model.h"
#include "session/constraint_compiler.h"
#include "session/model_files.h"
#include "session/request.h"
#include "session/request_handle.h"
#include "session/request_stream.h"
#include "towers/media_encoder.h"

namespace lapidary {

// Images and audio that a prompt may hold; without any of a kind its tower is not read.
struct MediaLimits {
  int images = 0;
  int audio = 0;
  int videos = 0;                          // their frames do not count as images
  std::filesystem::path local_files = {};  // the directory of those that requests may name
  std::vector<std::string> hosts = {};     // that files may be fetched from (server/media_hosts.h)
  std::string problem = {};  // why a tower of the checkpoint cannot be used; empty: all can
};

struct SessionOptions {
  LoadOptions load;
  MediaLimits media = {};
  EngineOptions engine;                             // its batch limits are those of `load`
  size_t max_grammar_bytes = kDefaultGrammarBytes;  // ConstraintCompiler
  std::shared_ptr<const Adapter> adapter = {};      // of requests that name none
};

class Session {
 public:
  static Result<std::unique_ptr<Session>> Load(ModelFiles files, const SessionOptions& options);
  // Over an engine that is there already.
  Session(std::unique_ptr<Engine> engine, std::shared_ptr<const TextModel> text,
          size_t max_grammar_bytes = kDefaultGrammarBytes);
  // Ends what is still open with kCancelled.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const ModelPlan& plan() const { return engine_->plan(); }
  const TextModel& text() const { return *text_; }
  // Most tokens of a prompt and its answer.
  int32_t max_model_len() const;
  double load_ms() const { return load_ms_; }
  // In bytes, as they are computed with; all 0 over an engine that was there already.
  const Footprint& weights() const { return weights_; }
  const std::vector<WeightRow>& weight_table() const { return weight_table_; }
  Engine& engine() const { return *engine_; }

  // What was asked for and the model has.
  const MediaLimits& media_limits() const { return media_limits_; }
  // Null where all limits are 0. Not for the engine's thread: it takes its time.
  MediaEncoder* media_encoder() const { return media_encoder_.get(); }

  // For Request::grammar. Takes milliseconds, for a hostile constraint up to seconds, or as long as
  // `work` allows: then an error of kind kBusy. The same constraint again costs nothing.
  Result<std::shared_ptr<const grammar::CompiledGrammar>> CompileConstraint(
      const grammar::Constraint& constraint, grammar::Work* work = nullptr) {
    return constraints_->Compile(constraint, work);
  }
  // If it was compiled and is still there.
  std::shared_ptr<const grammar::CompiledGrammar> FindConstraint(
      const grammar::Constraint& constraint) {
    return constraints_->Find(constraint);
  }
  GrammarStats grammar_stats() const { return constraints_->stats(); }

  // An error when the request can never run or the queue is full; then no event follows. Events
  // come as they happen, on the engine's thread (see EventSink).
  Result<RequestHandle> Submit(const Request& request, EventSink sink);
  // So many answers to one prompt, each with its own seed (the given one plus its index). The
  // prompt's logprobs come with the first, and before any token of the others.
  Result<std::vector<RequestHandle>> Submit(const Request& request, int num_answers,
                                            EventSink sink);
  // The same, read on the caller's thread.
  Result<RequestStream> Start(const Request& request);

  // The output ids of every request, the stop token included, in the order given. At most
  // `max_in_flight` are open at once, in order; `on_done` is called as each ends, on the caller's
  // thread. The first request that is refused or fails ends the whole with its error.
  Result<std::vector<std::vector<int32_t>>> RunAll(std::vector<Request> requests, int max_in_flight,
                                                   const std::function<void()>& on_done);

 private:
  // The one place where a request becomes what the engine runs.
  SequenceSpec MakeSpec(const Request& request) const;

  const std::shared_ptr<const TextModel> text_;
  const std::unique_ptr<Engine> engine_;
  const std::shared_ptr<EngineLink> link_;
  const std::unique_ptr<ConstraintCompiler> constraints_;
  std::shared_ptr<const Adapter> adapter_;
  MediaLimits media_limits_;
  std::unique_ptr<MediaEncoder> media_encoder_;
  double load_ms_ = 0.0;
  Footprint weights_;
  std::vector<WeightRow> weight_table_;
};

}  // namespace lapidary
