// Planning and bookkeeping of one decode step with many running sequences.
#include <benchmark/benchmark.h>

#include "engine/scheduler.h"
#include "model/presets.h"

namespace lapidary {
namespace {

void DecodeStep(benchmark::State& state) {
  const int num_sequences = static_cast<int>(state.range(0));
  const ModelPlan plan =
      MakeModelPlan(ParseModelConfig(*PresetConfig("26b-a4b"), "26b-a4b").value()).value();
  const KvLayout layout = MakeKvLayout(plan, KvFormat::kBF16);
  SchedulerLimits limits;
  limits.max_num_seqs = num_sequences;
  Scheduler scheduler(plan, layout, 600 * num_sequences, limits, /*hash_seed=*/1);
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
  };
  while (scheduler.stats().num_waiting > 0) step();
  for (int warm = 0; warm < 50; ++warm) step();
  for (auto _ : state) step();
}
BENCHMARK(DecodeStep)->Arg(1)->Arg(32)->Arg(256)->Iterations(3000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace lapidary
