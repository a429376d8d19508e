// One server of a fleet in simulated time: the real scheduler and prefix cache over a simulated
// executor, driven as the engine's thread drives them, without threads and without waiting.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "executor/simulated/simulated_executor.h"
#include "load/load_model.h"

namespace lapidary::fleet {

// What all replicas have in common.
struct ReplicaModel {
  ModelPlan plan;
  KvLayout layout;
  int num_pages = 0;
  simulated::ModelTimings timings;
  SchedulerLimits limits;
};

// As a server of that preset on that card would have it, with these limits and this share of the
// card's memory.
Result<ReplicaModel> MakeReplicaModel(const std::string& preset, const simulated::Card& card,
                                      const BatchLimits& limits, double memory_share);

class Replica {
 public:
  // `model` must outlive it.
  Replica(const ReplicaModel& model, uint64_t hash_seed);

  // An error when the sequence can never run. Ids are numbers from 1 on.
  Result<SequenceId> Add(double now_ms, SequenceSpec spec);

  // When the oldest step in flight ends; nothing when there is none.
  std::optional<double> next_end_ms() const;
  // Ends it, at that time, and plans what comes next.
  std::vector<SequenceProgress> EndStep();

  SchedulerStats stats() const { return scheduler_.stats(); }
  uint64_t num_steps() const { return num_steps_; }

 private:
  void PlanSteps();

  const ReplicaModel& model_;
  const std::shared_ptr<simulated::ManualClock> clock_ = std::make_shared<simulated::ManualClock>();
  simulated::SimulatedExecutor executor_;
  Scheduler scheduler_;
  std::deque<StepPlan> in_flight_;
  SequenceId last_id_ = 0;
  uint64_t num_steps_ = 0;
};

}  // namespace lapidary::fleet
