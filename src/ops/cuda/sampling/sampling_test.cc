// The device's sampler against the host's, on the same logits: the same tokens, bit for bit the
// same draw.
#include "ops/cuda/sampling/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "ops/cuda/test_buffer.h"
#include "sampling/sampler.h"

namespace lapidary::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Request {
  SamplingParams params;
  PenaltyState history;
  uint64_t position = 0;
  int32_t scored_id = -1;
};

// Runs `requests`, one per row of `logits`, through one call.
std::vector<SampledRow> RunOnDevice(const std::vector<float>& logits, int vocab_size,
                                    const std::vector<Request>& requests,
                                    std::vector<int32_t>* last_tokens_out = nullptr) {
  std::vector<SamplingRow> spec;
  std::vector<int32_t> suppressed;
  std::vector<SamplingBias> biases;
  std::vector<SamplingHistory> history;
  SamplingCall call;
  for (size_t idx = 0; idx < requests.size(); ++idx) {
    const Request& request = requests[idx];
    const SamplingParams& params = request.params;
    SamplingRow row;
    row.seed = params.seed;
    row.position = request.position;
    row.logits_row = static_cast<int32_t>(idx);
    row.scored_id = request.scored_id;
    row.slot = static_cast<int32_t>(idx);
    row.greedy = params.greedy();
    row.inv_temperature = params.greedy() ? 1.0f : 1.0f / params.temperature;
    row.top_k = params.top_k;
    row.top_p = params.top_p;
    row.min_p = params.min_p;
    row.repetition_penalty = params.repetition_penalty;
    row.presence_penalty = params.presence_penalty;
    row.frequency_penalty = params.frequency_penalty;
    row.num_logprobs = params.num_logprobs;
    row.has_penalties = params.has_penalties();
    row.suppress_begin = static_cast<int32_t>(suppressed.size());
    row.num_suppressed = static_cast<int32_t>(params.suppress_tokens.size());
    suppressed.insert(suppressed.end(), params.suppress_tokens.begin(),
                      params.suppress_tokens.end());
    row.allowed_begin = static_cast<int32_t>(suppressed.size());
    row.num_allowed = static_cast<int32_t>(params.allowed_tokens.size());
    suppressed.insert(suppressed.end(), params.allowed_tokens.begin(), params.allowed_tokens.end());
    row.bias_begin = static_cast<int32_t>(biases.size());
    row.num_biases = static_cast<int32_t>(params.logit_bias.size());
    for (const LogitBias& bias : params.logit_bias) biases.push_back({bias.id, bias.bias});
    std::stable_sort(biases.begin() + row.bias_begin, biases.end(),
                     [](const SamplingBias& a, const SamplingBias& b) { return a.id < b.id; });
    row.history_begin = static_cast<int32_t>(history.size());
    for (const PenaltyState::Entry& entry : request.history.entries()) {
      history.push_back({entry.id, entry.output_count});
    }
    row.num_history = static_cast<int32_t>(history.size()) - row.history_begin;
    spec.push_back(row);
    call.needs.adjustments |=
        row.num_suppressed > 0 || row.num_biases > 0 || row.has_penalties != 0;
    call.needs.logprobs |= row.num_logprobs >= 0;
  }
  const auto padded = [](size_t size) { return std::max<size_t>(size, 1); };
  suppressed.resize(padded(suppressed.size()));
  biases.resize(padded(biases.size()));
  history.resize(padded(history.size()));
  TestBuffer<float> device_logits(logits);
  TestBuffer<SamplingRow> device_spec(spec);
  TestBuffer<int32_t> device_suppressed(suppressed);
  TestBuffer<SamplingBias> device_biases(biases);
  TestBuffer<SamplingHistory> device_history(history);
  TestBuffer<float> replaced_suppressed(suppressed.size());
  TestBuffer<float> replaced_biases(biases.size());
  TestBuffer<float> replaced_history(history.size());
  TestBuffer<int32_t> last_tokens(requests.size());
  TestBuffer<SampledRow> out(requests.size());
  const int rows = static_cast<int>(requests.size());
  TestBuffer<std::byte> scratch(SamplingScratchBytes(rows, vocab_size));
  call.rows = rows;
  call.num_logits_rows = rows;
  call.vocab_size = vocab_size;
  call.logits = device_logits.get();
  call.spec = device_spec.get();
  call.suppressed = device_suppressed.get();
  call.biases = device_biases.get();
  call.history = device_history.get();
  call.replaced_suppressed = replaced_suppressed.get();
  call.replaced_biases = replaced_biases.get();
  call.replaced_history = replaced_history.get();
  call.last_tokens = last_tokens.get();
  call.out = out.get();
  call.scratch = scratch.get();
  RunSampling({}, call);
  LAPIDARY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(SameBits(device_logits.Download(), logits)) << "the logits did not come back";
  EXPECT_TRUE(out.GuardsIntact() && scratch.GuardsIntact() && last_tokens.GuardsIntact());
  if (last_tokens_out != nullptr) *last_tokens_out = last_tokens.Download();
  return out.Download();
}

class SamplingTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { LAPIDARY_SKIP_WITHOUT_GPU(); }
  int vocab_size() const { return GetParam(); }

  // Peaked rows with ties: quarter steps, a few high ones.
  std::vector<float> Row(std::mt19937& random) const {
    std::normal_distribution<float> normal(0.0f, 4.0f);
    std::vector<float> row(vocab_size());
    const bool has_ties = random() % 2 == 0;
    for (float& value : row) {
      value = normal(random);
      if (has_ties) value = std::round(value * 4.0f) / 4.0f;
      if (random() % 50 == 0) value = -kInfinity;
    }
    return row;
  }

  Request RandomRequest(std::mt19937& random) const {
    const auto pick = [&](auto... values) {
      const std::array<std::common_type_t<decltype(values)...>, sizeof...(values)> all{values...};
      return all[random() % all.size()];
    };
    Request request;
    SamplingParams& params = request.params;
    params.temperature = pick(0.0f, 0.3f, 0.7f, 1.0f, 1.0f, 2.5f);
    params.top_k = pick(0, 0, 1, 5, 64, 700, 100000);
    params.top_p = pick(1.0f, 1.0f, 0.95f, 0.5f, 0.01f, 0.999f);
    params.min_p = pick(0.0f, 0.0f, 0.05f, 0.9f);
    params.seed = random();
    params.num_logprobs = pick(-1, -1, 0, 1, 5, 20);
    request.position = random() % 100000;
    const auto any_id = [&] { return static_cast<int32_t>(random() % vocab_size()); };
    if (random() % 3 == 0) {
      params.repetition_penalty = pick(1.0f, 1.3f, 0.8f);
      params.frequency_penalty = pick(0.0f, 0.7f, -1.0f);
      params.presence_penalty = pick(0.0f, 1.5f);
      std::vector<int32_t> prompt(random() % 200);
      for (int32_t& id : prompt) id = any_id();
      request.history.AddPrompt(prompt);
      for (int idx = static_cast<int>(random() % 50); idx > 0; --idx) {
        request.history.AddOutput(any_id());
      }
    }
    if (random() % 3 == 0) {
      for (int idx = 0; idx < 30; ++idx) {
        params.logit_bias.push_back({any_id() % 40, static_cast<float>(random() % 200) / 4 - 25});
      }
    }
    if (random() % 4 == 0) params.suppress_tokens = {any_id(), any_id(), 3, 3};
    if (random() % 5 == 0) {
      for (int32_t id = any_id() % 7; id < 200; id += 1 + any_id() % 40) {
        params.allowed_tokens.push_back(id);
      }
    }
    return request;
  }
};

TEST_P(SamplingTest, TokensAndLogprobsAreTheHosts) {
  std::mt19937 random(7 + vocab_size());
  const int rounds = vocab_size() > 100000 ? 6 : 40;
  constexpr int kRows = 12;
  Sampler sampler(vocab_size());
  for (int round = 0; round < rounds; ++round) {
    std::vector<float> logits;
    std::vector<Request> requests;
    for (int row = 0; row < kRows; ++row) {
      const std::vector<float> values = Row(random);
      logits.insert(logits.end(), values.begin(), values.end());
      requests.push_back(RandomRequest(random));
    }
    std::vector<int32_t> last_tokens;
    const std::vector<SampledRow> sampled =
        RunOnDevice(logits, vocab_size(), requests, &last_tokens);
    for (int row = 0; row < kRows; ++row) {
      const std::span<const float> values(logits.data() + size_t(row) * vocab_size(), vocab_size());
      const Request& request = requests[row];
      const auto expected =
          sampler.Sample(values, request.params, request.history, request.position);
      if (!expected.ok()) {  // Everything that was allowed is -inf.
        EXPECT_EQ(sampled[row].status, SamplingStatus::kNothingToDraw);
        continue;
      }
      EXPECT_EQ(sampled[row].status, SamplingStatus::kOk);
      EXPECT_EQ(sampled[row].id, expected->id)
          << "round " << round << " row " << row << " temperature " << request.params.temperature
          << " top_k " << request.params.top_k << " top_p " << request.params.top_p << " min_p "
          << request.params.min_p;
      EXPECT_EQ(last_tokens[row], expected->id);
      if (request.params.num_logprobs < 0) continue;
      EXPECT_NEAR(sampled[row].logprob, expected->logprob, 1e-5);
      ASSERT_EQ(sampled[row].num_top, expected->num_top);
      for (int rank = 0; rank < expected->num_top; ++rank) {
        EXPECT_EQ(sampled[row].top_ids[rank], expected->top[rank].id);
        EXPECT_NEAR(sampled[row].top_logprobs[rank], expected->top[rank].logprob, 1e-5);
      }
    }
  }
}

TEST_P(SamplingTest, RowsThatCannotBeDrawnFromAreRefusedAlone) {
  std::mt19937 random(5);
  std::vector<float> logits;
  for (int row = 0; row < 4; ++row) {
    std::vector<float> values = Row(random);
    if (row == 1) values[vocab_size() / 2] = std::nanf("");
    if (row == 2) std::fill(values.begin(), values.end(), -kInfinity);
    if (row == 3) values.back() = kInfinity;
    logits.insert(logits.end(), values.begin(), values.end());
  }
  const std::vector<SampledRow> sampled =
      RunOnDevice(logits, vocab_size(), std::vector<Request>(4));
  EXPECT_EQ(sampled[0].status, SamplingStatus::kOk);
  EXPECT_EQ(sampled[1].status, SamplingStatus::kNotFinite);
  EXPECT_EQ(sampled[2].status, SamplingStatus::kNothingToDraw);
  EXPECT_EQ(sampled[3].status, SamplingStatus::kNotFinite);
}

TEST_P(SamplingTest, GivenTokensAreScored) {
  std::mt19937 random(6);
  const std::vector<float> logits = Row(random);
  Request request;
  request.scored_id = vocab_size() - 1;
  request.params.num_logprobs = 3;
  const std::vector<SampledRow> sampled = RunOnDevice(logits, vocab_size(), {request});
  const auto expected = Sampler(vocab_size()).Score(logits, request.scored_id, 3);
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(sampled[0].id, request.scored_id);
  EXPECT_NEAR(sampled[0].logprob, expected->logprob, 1e-5);
  EXPECT_EQ(sampled[0].top_ids[2], expected->top[2].id);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SamplingTest, testing::Values(1003, 2048, 262144),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace lapidary::cuda
