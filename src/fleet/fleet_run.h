// A trace played to a fleet of replicas in simulated time: one event after the other, without
// threads, so the same trace gives the same figures on any machine.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fleet/policy.h"
#include "fleet/replica.h"
#include "fleet/trace.h"

namespace lapidary::fleet {

struct FleetReport {
  int64_t num_answers = 0;
  int64_t num_answer_tokens = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_hit_tokens = 0;    // of those, found in a prefix cache
  uint64_t num_preemptions = 0;  // sequences that were computed again for want of pages
  uint64_t num_steps = 0;
  double duration_s = 0.0;           // until the last answer has ended
  std::vector<double> ttft_ms = {};  // of every answer, ascending
  std::vector<double> tpot_ms = {};  // of every answer of more than one token, ascending

  double hit_rate() const;
};

// An error where a conversation is too long for the model. `on_answer` is called as each ends.
Result<FleetReport> RunFleet(const ReplicaModel& model, int num_replicas, Policy& policy,
                             const std::vector<Conversation>& trace,
                             const std::function<void()>& on_answer = nullptr);

}  // namespace lapidary::fleet
