// Planning and bookkeeping of one decode step with many running sequences; the second argument says
// whether another thread follows the prefix cache, as it does where KV events are published.
#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/scheduler.h"
#include "kv/resumable_blocks.h"
#include "model/presets.h"

namespace lapidary {
namespace {

// Takes what is handed over, makes events of it and drops them.
class Follower {
 public:
  Follower(const ModelPlan& plan, const KvLayout& layout)
      : blocks_(plan, layout), thread_([this] {
          CacheChanges changes;
          while (!stopping_) {
            if (queue_.Take(&changes)) blocks_.Apply(changes);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
        }) {}
  ~Follower() {
    stopping_ = true;
    thread_.join();
  }
  CacheChangeQueue& queue() { return queue_; }

 private:
  CacheChangeQueue queue_;
  ResumableBlocks blocks_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

void DecodeStep(benchmark::State& state) {
  const int num_sequences = static_cast<int>(state.range(0));
  const ModelPlan plan =
      MakeModelPlan(ParseModelConfig(*PresetConfig("26b-a4b"), "26b-a4b").value()).value();
  const KvLayout layout = MakeKvLayout(plan, KvFormat::kBF16);
  SchedulerLimits limits;
  limits.max_num_seqs = num_sequences;
  std::optional<Follower> follower;  // Outlives the scheduler.
  if (state.range(1) != 0) follower.emplace(plan, layout);
  Scheduler scheduler(plan, layout, 600 * num_sequences, limits, /*hash_seed=*/1);
  if (follower) scheduler.set_cache_observer(&follower->queue());
  for (int idx = 0; idx < num_sequences; ++idx) {
    SequenceSpec spec;
    spec.prompt.assign(1000, idx);
    spec.max_new_tokens = 100000;
    spec.sampling = std::make_shared<SamplingParams>();
    CHECK(scheduler.Add(static_cast<SequenceId>(idx) + 1, std::move(spec)).ok());
  }
  const auto step = [&] {
    std::optional<StepPlan> step_plan = scheduler.Plan();
    StepOutput output;
    output.sequences.resize(step_plan->entries.size());
    for (size_t idx = 0; idx < output.sequences.size(); ++idx) {
      if (step_plan->entries[idx].samples) output.sequences[idx].tokens.resize(1);
    }
    scheduler.Complete(std::move(*step_plan), std::move(output));
    if (follower) follower->queue().HandOver();
  };
  while (scheduler.stats().num_waiting > 0) step();
  for (int warm = 0; warm < 50; ++warm) step();
  for (auto _ : state) step();
}
BENCHMARK(DecodeStep)
    ->ArgNames({"sequences", "events"})
    ->ArgsProduct({{1, 32, 256}, {0, 1}})
    ->Iterations(3000)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace lapidary
