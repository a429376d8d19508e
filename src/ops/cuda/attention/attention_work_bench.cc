// Planning the attention of a full decode step, which the host does while the step before runs: 50
// microseconds are the aim.
#include <benchmark/benchmark.h>

#include "ops/cuda/attention/attention_work.h"

namespace lapidary::cuda {
namespace {

void BM_PlanAttentionWork(benchmark::State& state) {
  const AttentionGeometry geometry = {.num_heads = 32, .num_kv_heads = 16, .window = 1024};
  const AttentionWorkOptions options = {.num_blocks = 264, .max_partials = 1 << 20};
  std::vector<AttentionSequence> sequences;
  for (int idx = 0; idx < state.range(0); ++idx) {
    const int position = 37 * idx;
    sequences.push_back({.num_queries = 1, .first_position = position, .num_cached = position});
  }
  std::vector<AttentionItem> items;
  for (auto _ : state) {
    PlanAttentionWork(geometry, sequences, options, items);
    benchmark::DoNotOptimize(items.data());
  }
}
BENCHMARK(BM_PlanAttentionWork)->Arg(16)->Arg(256);

}  // namespace
}  // namespace lapidary::cuda
