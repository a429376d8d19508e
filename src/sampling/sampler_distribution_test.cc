// Observed frequencies against the reference distribution: chi-square with fixed seeds.
#include <gtest/gtest.h>

#include <random>

#include "sampling/reference_sampler.h"
#include "sampling/sampler.h"

namespace lapidary {
namespace {

constexpr int kDraws = 40000;

struct Case {
  const char* name;
  SamplingParams params;
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> output = {};
  int32_t vocab_size = 97;
};

std::vector<float> RandomRow(int32_t vocab_size, float deviation = 2.0f) {
  std::mt19937 random(11);
  std::normal_distribution<float> noise(0.0f, deviation);
  std::vector<float> row(static_cast<size_t>(vocab_size));
  for (float& x : row) x = noise(random);
  return row;
}

// Asserts that a token of probability zero never appears, and that chi-square over the others
// stays below its mean by five deviations: with the seeds fixed this passes or fails for good.
void ExpectFrequencies(const std::vector<int>& counts, const std::vector<double>& probability) {
  double chi_square = 0.0, rest_expected = 0.0;
  int num_cells = 0, rest_count = 0;
  for (size_t id = 0; id < counts.size(); ++id) {
    if (probability[id] == 0.0) {
      ASSERT_EQ(counts[id], 0) << "token " << id << " was filtered out";
      continue;
    }
    const double expected = probability[id] * kDraws;
    if (expected < 10.0) {  // Too rare for a cell of its own.
      rest_expected += expected;
      rest_count += counts[id];
      continue;
    }
    chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
    ++num_cells;
  }
  if (rest_expected >= 5.0) {
    chi_square += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
    ++num_cells;
  }
  ASSERT_LE(chi_square, num_cells + 5.0 * std::sqrt(2.0 * num_cells)) << num_cells << " cells";
}

class SamplerDistribution : public testing::TestWithParam<Case> {};

TEST_P(SamplerDistribution, MatchesTheReference) {
  const Case& test = GetParam();
  const std::vector<float> row = RandomRow(test.vocab_size);
  ASSERT_TRUE(test.params.Validate(test.vocab_size).ok());
  PenaltyState history;
  history.AddPrompt(test.prompt);
  for (const int32_t id : test.output) history.AddOutput(id);
  const std::vector<double> probability = ReferenceDistribution(
      ReferenceLogits(row, test.params, test.prompt, test.output), test.params);

  Sampler sampler(test.vocab_size);
  // Over positions with one seed, then over seeds at one position: both have to be independent.
  for (const bool over_seeds : {false, true}) {
    std::vector<int> counts(row.size(), 0);
    SamplingParams params = test.params;
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      params.seed = over_seeds ? draw : 1234;
      ++counts[sampler.Sample(row, params, history, over_seeds ? 17 : draw).value().id];
    }
    ExpectFrequencies(counts, probability);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, SamplerDistribution,
    testing::Values(
        Case{"Plain", {}}, Case{"Cold", {.temperature = 0.5f}}, Case{"Hot", {.temperature = 3.0f}},
        Case{"Greedy", {.temperature = 0.0f}}, Case{"TopK", {.top_k = 7}},
        Case{"TopKOff", {.top_k = -1}}, Case{"TopKBeyondVocabulary", {.top_k = 1000}},
        Case{"TopP", {.top_p = 0.8f}}, Case{"TopPTiny", {.top_p = 1e-9f}},
        Case{"TopPNearOne", {.top_p = 0.999999f}}, Case{"MinP", {.min_p = 0.1f}},
        Case{"MinPOne", {.min_p = 1.0f}},
        Case{"AllFilters", {.temperature = 1.5f, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f}},
        Case{"GemmaDefaults", {.temperature = 1.0f, .top_k = 64, .top_p = 0.95f}, {}, {}, 500},
        Case{"Repetition", {.repetition_penalty = 1.5f}, {1, 2, 3, 50}, {3, 60, 60}},
        Case{"Presence", {.presence_penalty = 1.5f}, {1, 2, 3}, {3, 60, 60, 8}},
        Case{"Frequency", {.frequency_penalty = -0.7f}, {1, 2, 3}, {3, 60, 60, 8, 8, 8}},
        Case{"AllPenalties",
             {.top_k = 30,
              .repetition_penalty = 0.8f,
              .presence_penalty = 0.5f,
              .frequency_penalty = 0.4f},
             {10, 11, 12, 13},
             {12, 20, 20, 21, 96, 0}},
        Case{"Bias", {.logit_bias = {{0, 3.0f}, {5, -100.0f}, {96, 4.5f}, {96, 0.5f}}}},
        Case{"Suppress", {.top_p = 0.7f, .suppress_tokens = {0, 1, 2, 3, 4, 5, 40, 96}}},
        Case{"TwoTokens", {}, {}, {}, 2}, Case{"OneToken", {.top_k = 1, .top_p = 0.5f}, {}, {}, 1}),
    [](const testing::TestParamInfo<Case>& test) { return std::string(test.param.name); });

TEST(SamplerDistribution, FlatRowsAreDrawnEvenly) {
  constexpr int32_t kVocab = 262144;
  const std::vector<float> row(kVocab, 3.0f);
  Sampler sampler(kVocab);
  constexpr int kCells = 64;
  std::vector<int> counts(kCells, 0);
  constexpr int kFlatDraws = 3000;
  for (uint64_t position = 0; position < kFlatDraws; ++position) {
    ++counts[sampler.Sample(row, {}, {}, position).value().id / (kVocab / kCells)];
  }
  double chi_square = 0.0;
  const double expected = static_cast<double>(kFlatDraws) / kCells;
  for (const int count : counts) chi_square += (count - expected) * (count - expected) / expected;
  EXPECT_LE(chi_square, kCells + 5.0 * std::sqrt(2.0 * kCells));
}

}  // namespace
}  // namespace lapidary
