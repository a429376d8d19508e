#include "server/form_compiler.h"

#include <atomic>
#include <utility>

#include "base/background.h"
#include "base/memory_reserve.h"
#include "engine/generated_tokens.h"
#include "server/log_failure.h"

namespace lapidary {
namespace {

// Ordinary schemas take a few milliseconds.
constexpr int64_t kShortSteps = 30 * grammar::Work::kStepsPerMillisecond;

ApiError TooLong(const std::string& field) {
  return BadRequest(field,
                    "the form of the answer takes too long to compile: more than {} million steps",
                    grammar::Work::kMaxCompileSteps / 1'000'000);
}

ApiError TooMuchMemory(const std::string& message) {
  ApiError error{503, message};
  error.code = "out_of_memory";
  error.retry_after_seconds = 1;
  return error;
}

}  // namespace

struct FormCompiler::Task {
  grammar::Constraint constraint;
  std::string field;
  std::vector<int32_t> generated;
  std::shared_ptr<Responder> responder;
  Then then;                         // on the strand; empty once it was called
  std::atomic<bool> stopped{false};  // nobody waits for it

  void Answer(const ApiStatus& error, GrammarPtr grammar, MatcherPtr matcher) {
    if (Then call = std::exchange(then, nullptr)) {
      call(error, std::move(grammar), std::move(matcher));
    }
  }
};

FormCompiler::FormCompiler(Session& session) : session_(session), long_(1), short_(1) {}

FormCompiler::~FormCompiler() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const std::weak_ptr<Task>& weak : tasks_) {
    if (const auto task = weak.lock()) task->stopped = true;
  }
}

void FormCompiler::Compile(grammar::Constraint constraint, std::string field,
                           std::vector<int32_t> generated, std::shared_ptr<Responder> responder,
                           Then then) {
  if (responder->gone()) return;
  const auto task = std::make_shared<Task>();
  task->constraint = std::move(constraint);
  task->field = std::move(field);
  task->generated = std::move(generated);
  task->responder = std::move(responder);
  task->then = std::move(then);
  task->responder->OnCutShort([weak = std::weak_ptr(task)](const ApiStatus& why) {
    const auto cut = weak.lock();
    if (cut == nullptr) return;
    cut->stopped = true;
    if (why) return cut->Answer(why, nullptr, nullptr);
    cut->then = nullptr;
  });
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(tasks_, [](const std::weak_ptr<Task>& weak) { return weak.expired(); });
    tasks_.push_back(task);
    if (stopping_) task->stopped = true;
  }
  short_.Post([this, task] { Run(task, kShortSteps); });
}

void FormCompiler::Run(const std::shared_ptr<Task>& task, int64_t num_steps) {
  grammar::Work work(num_steps, &task->stopped);
  ApiStatus error;
  GrammarPtr grammar;
  MatcherPtr matcher;
  const auto compile = [&]() -> Status {
    ASSIGN_OR_RETURN(grammar, session_.CompileConstraint(task->constraint, &work));
    if (task->generated.empty()) return {};
    ASSIGN_OR_RETURN(matcher, MatchGenerated(grammar, task->generated, &work));
    return {};
  };
  try {
    const Status compiled = compile();
    const Error problem = compiled.ok() ? Error() : compiled.error();
    if (compiled.ok()) {
      // That is all.
    } else if (problem.kind != ErrorKind::kBusy) {
      error = BadRequest(grammar == nullptr ? task->field : "resume", "{}", problem.message);
    } else if (!work.is_empty()) {
      error = TooMuchMemory(problem.message);
    } else if (num_steps == kShortSteps && !task->stopped) {
      return long_.Post([this, task] {
        RunInBackground();
        Run(task, grammar::Work::kMaxCompileSteps);
      });
    } else {
      error = TooLong(task->field);
    }
  } catch (const std::exception& thrown) {
    Insist([&] { error = ApiErrorOf("a form could not be compiled", thrown); });
  }
  Insist([&] { task->responder->Post([=] { task->Answer(error, grammar, matcher); }); });
}

}  // namespace lapidary
