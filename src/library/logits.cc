#include <algorithm>

#include "engine/single_sequence.h"
#include "library/session_core.h"

namespace lapidary::v0 {

std::vector<float> Session::Logits(const std::vector<int32_t>& ids) {
  lapidary::Session& session = core_->session();
  const ModelPlan& plan = session.plan();
  if (ids.empty()) throw InvalidInput("the prompt is empty: give at least one token");
  if (std::ssize(ids) > session.max_model_len()) {
    throw InvalidInput(fmt::format("the context holds {} tokens; the prompt has {}",
                                   session.max_model_len(), ids.size()));
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= plan.vocab_size) {
      throw InvalidInput(
          fmt::format("token id {} is outside the vocabulary [0, {})", id, plan.vocab_size));
    }
  }
  // A step has room for logits of so many rows, however few sequences may run.
  const SchedulerLimits& limits = session.engine().options().limits;
  const int32_t max_rows = std::min(limits.max_scored_rows, limits.max_num_batched_tokens);
  std::vector<float> logits;
  logits.reserve(ids.size() * static_cast<size_t>(plan.vocab_size));
  const Status status = session.engine().BorrowExecutor([&](Executor& executor) {
    SingleSequence sequence(executor, max_rows);
    return sequence.Append(ids, [&](std::span<const float> rows) -> Status {
      logits.insert(logits.end(), rows.begin(), rows.end());
      return {};
    });
  });
  if (!status.ok()) {
    if (session.engine().has_failed()) throw DeviceError(status.error().message);
    Throw(status.error());
  }
  return logits;
}

}  // namespace lapidary::v0
