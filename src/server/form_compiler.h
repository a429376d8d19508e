// Compiles the forms that requests want their answers to have (JSON Schema, regular expressions,
// grammars), on threads of its own: no other request waits for one that takes seconds.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "grammar/constraint.h"
#include "server/http_types.h"
#include "server/worker_pool.h"
#include "session/session.h"

namespace lapidary {

class FormCompiler {
 public:
  using GrammarPtr = std::shared_ptr<const grammar::CompiledGrammar>;
  // Where the grammar stands behind tokens of the answer that are there already.
  using MatcherPtr = std::shared_ptr<const grammar::Matcher>;
  // An error, or the grammar, and the matcher if there are such tokens.
  using Then = std::function<void(const ApiStatus& error, GrammarPtr grammar, MatcherPtr matcher)>;

  // `session` must outlive this.
  explicit FormCompiler(Session& session);
  // Ends what is under way.
  ~FormCompiler();

  // On the responder's strand, where `then` is called too; never when the client has gone, which
  // ends the compilation. `field` is the request's that errors are about.
  // `generated` are the tokens that the answer goes on from.
  void Compile(grammar::Constraint constraint, std::string field, std::vector<int32_t> generated,
               std::shared_ptr<Responder> responder, Then then);

 private:
  struct Task;

  // Those that take long come again, one after another.
  void Run(const std::shared_ptr<Task>& task, int64_t num_steps);

  Session& session_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Task>> tasks_;  // open ones, and some that have ended
  bool stopping_ = false;
  WorkerPool long_;
  WorkerPool short_;
};

}  // namespace lapidary
