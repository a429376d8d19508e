#include "fleet/replica.h"

#include "load/memory_plan.h"
#include "model/presets.h"

namespace lapidary::fleet {
namespace {

constexpr size_t kMaxInFlight = 2;  // the engine's overlap

simulated::SimulatedExecutorOptions ExecutorOptions(const ReplicaModel& model,
                                                    std::shared_ptr<simulated::Clock> clock) {
  simulated::SimulatedExecutorOptions options;
  options.kv_layout = model.layout;
  options.num_pages = model.num_pages;
  options.timings = model.timings;
  options.vocabulary.size = model.plan.vocab_size;
  options.clock = std::move(clock);
  return options;
}

}  // namespace

Result<ReplicaModel> MakeReplicaModel(const std::string& preset, const simulated::Card& card,
                                      const BatchLimits& wanted, double memory_share) {
  ASSIGN_OR_RETURN(const ModelDescription description, DescribeModel(preset));
  ReplicaModel model;
  model.plan = description.plan;
  ASSIGN_OR_RETURN(const simulated::ModelTimings* timings,
                   simulated::FindTimings(card, model.plan));
  model.timings = *timings;
  model.layout = MakeKvLayout(model.plan, DefaultKvFormat(DeviceKind::kSimulated));
  ASSIGN_OR_RETURN(const BatchLimits limits,
                   CompleteLimits(wanted, model.plan, DeviceKind::kSimulated));
  MemoryRequest request;
  request.memory_bytes = card.memory_bytes;
  request.num_sms = card.num_sms;
  request.limits = limits;
  request.cuda.memory.share = memory_share;
  ASSIGN_OR_RETURN(const MemoryPlan memory, PlanMemory(model.plan, request));
  model.num_pages = static_cast<int>(memory.num_pages);
  const StepTime step_time = DefaultStepTime(DeviceKind::kSimulated);
  model.limits.max_num_seqs = limits.max_num_seqs;
  model.limits.max_num_batched_tokens = limits.max_num_batched_tokens;
  model.limits.max_model_len = limits.max_model_len;
  model.limits.max_step_ms = step_time.max_ms;
  model.limits.max_step_growth = step_time.max_growth;
  model.limits.max_prompt_ms = step_time.max_prompt_ms;
  return model;
}

Replica::Replica(const ReplicaModel& model, uint64_t hash_seed)
    : model_(model),
      executor_(model.plan, ExecutorOptions(model, clock_)),
      scheduler_(model.plan, model.layout, model.num_pages, model.limits, hash_seed) {}

Result<SequenceId> Replica::Add(double now_ms, SequenceSpec spec) {
  RETURN_IF_ERROR(scheduler_.Add(last_id_ + 1, std::move(spec)));
  ++last_id_;
  // The engine's thread takes newcomers between two steps; an idle one takes them at once.
  if (in_flight_.empty()) {
    clock_->Set(now_ms);
    PlanSteps();
  }
  return last_id_;
}

void Replica::PlanSteps() {
  while (in_flight_.size() < kMaxInFlight) {
    std::optional<StepPlan> plan = scheduler_.Plan();
    if (!plan) return;
    executor_.Submit(std::move(plan->batch));
    in_flight_.push_back(std::move(*plan));
    ++num_steps_;
  }
}

std::optional<double> Replica::next_end_ms() const {
  if (in_flight_.empty()) return std::nullopt;
  return executor_.next_end_ms();
}

std::vector<SequenceProgress> Replica::EndStep() {
  CHECK(!in_flight_.empty());
  StepOutput output = executor_.Collect();
  StepPlan plan = std::move(in_flight_.front());
  in_flight_.pop_front();
  scheduler_.Observe(plan.ShapeRun(output), *output.device_ms);
  std::vector<SequenceProgress> progress = scheduler_.Complete(std::move(plan), std::move(output));
  PlanSteps();
  return progress;
}

}  // namespace lapidary::fleet
