#include "fleet/fleet_run.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

namespace lapidary::fleet {
namespace {

class FleetRun {
 public:
  FleetRun(const ReplicaModel& model, int num_replicas, Policy& policy,
           const std::vector<Conversation>& trace, const std::function<void()>& on_answer)
      : model_(model),
        policy_(policy),
        trace_(trace),
        on_answer_(on_answer),
        talks_(trace.size()),
        open_(num_replicas),
        loads_(num_replicas, 0) {
    for (int idx = 0; idx < num_replicas; ++idx) {
      replicas_.push_back(std::make_unique<Replica>(model, static_cast<uint64_t>(idx) + 1));
    }
    for (size_t idx = 0; idx < trace.size(); ++idx) {
      events_.push({1e3 * trace[idx].at_s, ++num_events_, Event::kTurn, idx});
    }
  }

  Result<FleetReport> Run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.kind == Event::kTurn) {
        RETURN_IF_ERROR(BeginTurn(event.idx, event.at_ms));
      } else {
        EndStep(event.idx, event.at_ms);
      }
    }
    for (const auto& replica : replicas_) {
      const SchedulerStats stats = replica->stats();
      report_.num_prompt_tokens += static_cast<int64_t>(stats.num_prompt_tokens);
      report_.num_hit_tokens += static_cast<int64_t>(stats.num_prefix_hit_tokens);
      report_.num_preemptions += stats.num_preemptions;
      report_.num_steps += replica->num_steps();
    }
    std::sort(report_.ttft_ms.begin(), report_.ttft_ms.end());
    std::sort(report_.tpot_ms.begin(), report_.tpot_ms.end());
    return std::move(report_);
  }

 private:
  struct Event {
    enum Kind { kTurn, kStepEnd };

    double at_ms = 0.0;
    uint64_t number = 0;  // of two at the same time, the one that was known first
    Kind kind = kTurn;
    size_t idx = 0;  // of the conversation, or of the replica

    bool operator<(const Event& other) const {  // the first one is on top of the queue
      return at_ms != other.at_ms ? at_ms > other.at_ms : number > other.number;
    }
  };

  // A conversation as far as it has come.
  struct Talk {
    std::vector<int32_t> tokens;
    size_t num_turns = 0;  // that were asked
    double asked_ms = 0.0;
    double first_token_ms = 0.0;
    int64_t num_answer_tokens = 0;  // of this turn
  };

  Status BeginTurn(size_t idx, double now_ms) {
    const Conversation& conversation = trace_[idx];
    Talk& talk = talks_[idx];
    const Turn& turn = conversation.turns[talk.num_turns];
    if (talk.num_turns == 0) talk.tokens = SystemTokens(conversation, model_.plan.vocab_size);
    const std::vector<int32_t> asked =
        TurnTokens(idx, talk.num_turns, turn.num_tokens, model_.plan.vocab_size);
    talk.tokens.insert(talk.tokens.end(), asked.begin(), asked.end());
    ++talk.num_turns;
    talk.asked_ms = now_ms;
    talk.num_answer_tokens = 0;
    SequenceSpec spec;
    spec.prompt = talk.tokens;
    spec.max_new_tokens = turn.num_answer_tokens;
    spec.sampling = sampling_;
    // As the server names them: where the system prompt ends, and where the prompt does.
    const int32_t last = static_cast<int32_t>(spec.prompt.size()) - 1;
    const int32_t system = conversation.num_system_tokens;
    if (system > 0 && system < last) spec.cache_points.push_back(system);
    if (last > 0) spec.cache_points.push_back(last);
    const int chosen = policy_.Choose(spec.prompt, loads_);
    Replica& replica = *replicas_[chosen];
    const bool was_idle = !replica.next_end_ms();
    ASSIGN_OR_RETURN(const SequenceId id, replica.Add(now_ms, std::move(spec)));
    open_[chosen].emplace(id, idx);
    ++loads_[chosen];
    if (was_idle) ExpectStepEnd(chosen);
    return {};
  }

  void ExpectStepEnd(size_t replica_idx) {
    if (const std::optional<double> end_ms = replicas_[replica_idx]->next_end_ms()) {
      events_.push({*end_ms, ++num_events_, Event::kStepEnd, replica_idx});
    }
  }

  void EndStep(size_t replica_idx, double now_ms) {
    for (const SequenceProgress& progress : replicas_[replica_idx]->EndStep()) {
      const auto open = open_[replica_idx].find(progress.id);
      Talk& talk = talks_[open->second];
      for (const SampledToken& token : progress.tokens) {
        if (talk.num_answer_tokens++ == 0) talk.first_token_ms = now_ms;
        talk.tokens.push_back(token.id);
      }
      if (!progress.finish) continue;
      EndAnswer(open->second, now_ms);
      open_[replica_idx].erase(open);
      --loads_[replica_idx];
    }
    ExpectStepEnd(replica_idx);
  }

  void EndAnswer(size_t idx, double now_ms) {
    const std::vector<Turn>& turns = trace_[idx].turns;
    Talk& talk = talks_[idx];
    ++report_.num_answers;
    report_.num_answer_tokens += talk.num_answer_tokens;
    report_.duration_s = 1e-3 * now_ms;
    report_.ttft_ms.push_back(talk.first_token_ms - talk.asked_ms);
    if (talk.num_answer_tokens > 1) {
      report_.tpot_ms.push_back((now_ms - talk.first_token_ms) /
                                static_cast<double>(talk.num_answer_tokens - 1));
    }
    if (talk.num_turns < turns.size()) {
      events_.push(
          {now_ms + 1e3 * turns[talk.num_turns - 1].think_s, ++num_events_, Event::kTurn, idx});
    } else {
      talk.tokens = {};
    }
    if (on_answer_) on_answer_();
  }

  const ReplicaModel& model_;
  Policy& policy_;
  const std::vector<Conversation>& trace_;
  const std::function<void()>& on_answer_;
  const std::shared_ptr<const SamplingParams> sampling_ = std::make_shared<SamplingParams>();
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<Talk> talks_;
  std::vector<std::unordered_map<SequenceId, size_t>> open_;  // by replica: conversations
  std::vector<int> loads_;
  std::priority_queue<Event> events_;
  uint64_t num_events_ = 0;
  FleetReport report_;
};

}  // namespace

double FleetReport::hit_rate() const {
  return num_prompt_tokens == 0
             ? 0.0
             : static_cast<double>(num_hit_tokens) / static_cast<double>(num_prompt_tokens);
}

Result<FleetReport> RunFleet(const ReplicaModel& model, int num_replicas, Policy& policy,
                             const std::vector<Conversation>& trace,
                             const std::function<void()>& on_answer) {
  for (size_t idx = 0; idx < trace.size(); ++idx) {
    if (trace[idx].num_tokens() > model.limits.max_model_len) {
      return MakeError("conversation {} of the trace has {} tokens; the model takes {}", idx,
                       trace[idx].num_tokens(), model.limits.max_model_len);
    }
  }
  return FleetRun(model, num_replicas, policy, trace, on_answer).Run();
}

}  // namespace lapidary::fleet
