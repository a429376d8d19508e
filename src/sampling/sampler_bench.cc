// Microseconds per row at Gemma's vocabulary, by what the request asks for.
//
// Two rows: "peaked" falls off as text does (most mass on a few tokens, a long light tail within
// the soft-cap of 30); "flat" is noise of unit deviation, the worst case for a nucleus.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "sampling/sampler.h"

namespace lapidary {
namespace {

constexpr int32_t kVocab = 262144;

std::vector<float> MakeRow(bool peaked) {
  std::mt19937 random(7);
  std::normal_distribution<float> noise(0.0f, peaked ? 2.5f : 1.0f);
  std::vector<float> row(kVocab);
  for (float& x : row) x = noise(random) - (peaked ? 8.0f : 0.0f);
  if (peaked) {
    for (int rank = 0; rank < 200; ++rank) {
      row[random() % kVocab] = 22.0f - 2.5f * std::log1p(static_cast<float>(rank));
    }
  }
  return row;
}

void RunRows(benchmark::State& state, const SamplingParams& params) {
  const std::vector<float> row = MakeRow(state.range(0) != 0);
  Sampler sampler(kVocab);
  PenaltyState history;
  for (int32_t id = 0; id < 1000; ++id) history.AddOutput(id * 7);
  uint64_t position = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(sampler.Sample(row, params, history, position++).value().id);
  }
  state.SetLabel(state.range(0) != 0 ? "peaked" : "flat");
}

#define LAPIDARY_SAMPLER_BENCHMARK(name, ...)                                         \
  void name(benchmark::State& state) { RunRows(state, SamplingParams{__VA_ARGS__}); } \
  BENCHMARK(name)->Arg(1)->Arg(0)->Unit(benchmark::kMicrosecond)

LAPIDARY_SAMPLER_BENCHMARK(Greedy, .temperature = 0);
LAPIDARY_SAMPLER_BENCHMARK(GemmaDefaults, .top_k = 64, .top_p = 0.95f);
LAPIDARY_SAMPLER_BENCHMARK(PlainTemperature, .temperature = 0.8f);
LAPIDARY_SAMPLER_BENCHMARK(TopPOnly, .top_p = 0.95f);
LAPIDARY_SAMPLER_BENCHMARK(MinPOnly, .min_p = 0.05f);
LAPIDARY_SAMPLER_BENCHMARK(TopK10000, .top_k = 10000);
LAPIDARY_SAMPLER_BENCHMARK(DefaultsAndSuppress, .top_k = 64, .top_p = 0.95f,
                           .suppress_tokens = {258882, 258883});
LAPIDARY_SAMPLER_BENCHMARK(DefaultsAndPenalties, .top_k = 64, .top_p = 0.95f,
                           .repetition_penalty = 1.1f);
LAPIDARY_SAMPLER_BENCHMARK(GreedyAndLogprobs, .temperature = 0, .num_logprobs = 20);

}  // namespace
}  // namespace lapidary
