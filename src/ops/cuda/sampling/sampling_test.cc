// The device's sampler against the host's, on the same logits: the same tokens, bit for bit the
// same draw.
#include "ops/cuda/sampling/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "ops/cuda/sampling/sampling_slot.h"
#include "ops/cuda/test_buffer.h"
#include "sampling/sampler.h"

namespace lapidary::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Request {
  SamplingParams params;
  PenaltyState history;
  int32_t position = 0;  // of its first row; draws are numbered from there
  int32_t scored_id = -1;
  std::vector<int32_t> drafts = {};  // rows behind the first
};

// What a device made of requests.
struct Outcome {
  std::vector<SampledRow> rows;  // of all requests, in order
  std::vector<SlotState> slots;
  std::vector<std::vector<SamplingHistory>> histories;
};

// Runs `requests`, 1 + drafts rows of `logits` each, through one call, as SlotRequests lays slots
// out.
Outcome RunOnDevice(const std::vector<float>& logits, int vocab_size,
                    const std::vector<Request>& requests) {
  std::vector<SamplingRow> spec;
  std::vector<SamplingSlot> slots;
  std::vector<SlotState> states;
  std::vector<int32_t> lists;
  int64_t num_replaced = 0;
  SamplingCall call;
  for (size_t idx = 0; idx < requests.size(); ++idx) {
    const Request& request = requests[idx];
    const SamplingParams& params = request.params;
    SamplingSlot& slot = slots.emplace_back(MakeSamplingSlot(params));
    slot.prompt_len = 1;
    slot.num_score_top = std::max(params.num_logprobs, 0);
    const auto begin_list = [&] {
      lists.resize(lists.size() + lists.size() % 2, -1);
      return static_cast<int32_t>(lists.size());
    };
    slot.suppressed_begin = begin_list();
    slot.num_suppressed = static_cast<int32_t>(params.suppress_tokens.size());
    lists.insert(lists.end(), params.suppress_tokens.begin(), params.suppress_tokens.end());
    slot.allowed_begin = begin_list();
    slot.num_allowed = static_cast<int32_t>(params.allowed_tokens.size());
    lists.insert(lists.end(), params.allowed_tokens.begin(), params.allowed_tokens.end());
    slot.biases_begin = begin_list();
    slot.num_biases = static_cast<int32_t>(params.logit_bias.size());
    std::vector<LogitBias> biases = params.logit_bias;
    std::stable_sort(biases.begin(), biases.end(),
                     [](const LogitBias& a, const LogitBias& b) { return a.id < b.id; });
    for (const LogitBias& bias : biases) {
      lists.insert(lists.end(), {bias.id, std::bit_cast<int32_t>(bias.bias)});
    }
    slot.history_begin = begin_list();
    const auto entries = request.history.entries();
    for (const PenaltyState::Entry& entry : entries) {
      lists.insert(lists.end(), {entry.id, entry.output_count});
    }
    const int num_rows = 1 + static_cast<int>(request.drafts.size());
    slot.history_capacity = static_cast<int32_t>(entries.size()) + num_rows;
    lists.resize(slot.history_begin + 2 * slot.history_capacity, -1);
    states.push_back({.num_history = static_cast<int32_t>(entries.size())});
    for (int row_idx = 0; row_idx < num_rows; ++row_idx) {
      SamplingRow& row = spec.emplace_back();
      row.logits_row = static_cast<int32_t>(spec.size()) - 1;
      row.slot = static_cast<int32_t>(idx);
      row.scored_id = request.scored_id;
      row.rows_before = row_idx;
      row.num_drafts = num_rows - 1;
      row.replaced_begin = static_cast<int32_t>(num_replaced);
      row.position = request.position + row_idx;
      row.draft = row_idx + 1 < num_rows ? request.drafts[row_idx] : -1;
      num_replaced +=
          ReplacedWords(slot.num_suppressed, slot.num_biases, static_cast<int64_t>(entries.size()));
    }
    call.needs.adjustments |=
        slot.num_suppressed > 0 || slot.num_biases > 0 || slot.has_penalties != 0;
    call.needs.logprobs |= slot.num_logprobs >= 0 || request.scored_id >= 0;
    call.needs.drafts |= num_rows > 1;
  }
  lists.resize(std::max<size_t>(lists.size(), 1));
  TestBuffer<float> device_logits(logits);
  TestBuffer<SamplingRow> device_spec(spec);
  TestBuffer<SamplingSlot> device_slots(slots);
  TestBuffer<SlotState> device_states(states);
  TestBuffer<int32_t> device_lists(lists);
  TestBuffer<int32_t> replaced(num_replaced);
  TestBuffer<SampledRow> out(spec.size());
  const int rows = static_cast<int>(spec.size());
  TestBuffer<std::byte> scratch(SamplingScratchBytes(rows, vocab_size));
  call.rows = rows;
  call.num_logits_rows = rows;
  call.vocab_size = vocab_size;
  call.logits = device_logits.get();
  call.spec = device_spec.get();
  call.slots = device_slots.get();
  call.states = device_states.get();
  call.lists = device_lists.get();
  call.replaced = replaced.get();
  call.out = out.get();
  call.scratch = scratch.get();
  RunSampling(TestContext(), call);
  if (call.needs.drafts) RunAccept(TestContext(), call);
  LAPIDARY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(SameBits(device_logits.Download(), logits)) << "the logits did not come back";
  EXPECT_TRUE(out.GuardsIntact() && scratch.GuardsIntact() && device_states.GuardsIntact() &&
              device_lists.GuardsIntact() && replaced.GuardsIntact());
  Outcome outcome{out.Download(), device_states.Download(), {}};
  lists = device_lists.Download();
  for (size_t idx = 0; idx < requests.size(); ++idx) {
    auto& history = outcome.histories.emplace_back();
    for (int entry = 0; entry < outcome.slots[idx].num_history; ++entry) {
      const size_t at = slots[idx].history_begin + 2 * entry;
      history.push_back({lists[at], lists[at + 1]});
    }
  }
  return outcome;
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
    request.position = static_cast<int32_t>(random() % 100000);
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
    const Outcome outcome = RunOnDevice(logits, vocab_size(), requests);
    const std::vector<SampledRow>& sampled = outcome.rows;
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
      EXPECT_EQ(outcome.slots[row].last_token, expected->id);
      EXPECT_EQ(outcome.slots[row].length, request.position + 1);
      EXPECT_EQ(sampled[row].num_accepted, 1);
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

// Rows of equals, of few tokens, and without a peak; so many wanted that they are just few enough
// to be sorted, or not.
TEST_P(SamplingTest, FiltersAreTheHostsAtTheirEdges) {
  const int vocab = vocab_size();
  std::vector<std::vector<float>> rows(5, std::vector<float>(vocab, 1.5f));
  for (int id = 0; id < vocab; ++id) {
    if (id % 3 != 0) rows[1][id] = 1.25f;
    rows[2][id] = id % (vocab / 5) == 7 ? -static_cast<float>(id % 11) : -kInfinity;
    rows[3][id] = -1e-3f * static_cast<float>(id);
    rows[4][id] = 30.0f * std::sin(static_cast<float>(id) * 0.7f);
  }
  Sampler sampler(vocab);
  for (const int top_k : {0, 1, 64, 511, 512, 513, 1003}) {
    for (const float top_p : {1.0f, 0.95f, 1e-6f, 0.999999f}) {
      std::vector<float> logits;
      std::vector<Request> requests;
      for (const std::vector<float>& row : rows) {
        logits.insert(logits.end(), row.begin(), row.end());
        Request& request = requests.emplace_back();
        request.params.temperature = 0.8f;
        request.params.top_k = top_k;
        request.params.top_p = top_p;
        request.params.seed = 11 + logits.size();
        request.position = 3;
      }
      const Outcome outcome = RunOnDevice(logits, vocab, requests);
      for (size_t row = 0; row < rows.size(); ++row) {
        const auto expected = sampler.Sample(rows[row], requests[row].params, requests[row].history,
                                             requests[row].position);
        ASSERT_TRUE(expected.ok());
        EXPECT_EQ(outcome.rows[row].id, expected->id)
            << "row " << row << " top_k " << top_k << " top_p " << top_p;
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
      RunOnDevice(logits, vocab_size(), std::vector<Request>(4)).rows;
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
  const std::vector<SampledRow> sampled = RunOnDevice(logits, vocab_size(), {request}).rows;
  const auto expected = Sampler(vocab_size()).Score(logits, request.scored_id, 3);
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(sampled[0].id, request.scored_id);
  EXPECT_NEAR(sampled[0].logprob, expected->logprob, 1e-5);
  EXPECT_EQ(sampled[0].top_ids[2], expected->top[2].id);
}

// The round's rows one after the other on the host, each with what was said before it.
TEST_P(SamplingTest, RoundsWithDraftsAreTheHostsTokenByToken) {
  std::mt19937 random(11 + vocab_size());
  Sampler sampler(vocab_size());
  for (int round = 0; round < (vocab_size() > 100000 ? 2 : 12); ++round) {
    std::vector<float> logits;
    std::vector<Request> requests;
    for (const int num_drafts : {3, 0, kMaxDrafts, 1}) {
      Request request = RandomRequest(random);
      request.params.allowed_tokens.clear();
      request.params.suppress_tokens.clear();
      request.params.repetition_penalty = 1.2f;
      request.params.frequency_penalty = 0.5f;
      PenaltyState history = request.history;
      for (int row = 0; row <= num_drafts; ++row) {
        const std::vector<float> values = Row(random);
        logits.insert(logits.end(), values.begin(), values.end());
        const int32_t id = sampler
                               .Sample(values, request.params, history,
                                       static_cast<uint64_t>(request.position + row))
                               .value()
                               .id;
        history.AddOutput(id);
        // Mostly right drafts; a wrong one ends the round, though later rows are drawn as well.
        const bool is_right = random() % 8 != 0;
        if (row < num_drafts) {
          request.drafts.push_back(is_right ? id : (id + 1) % vocab_size());
        }
      }
      requests.push_back(request);
    }
    const Outcome outcome = RunOnDevice(logits, vocab_size(), requests);
    size_t first = 0;
    for (size_t idx = 0; idx < requests.size(); ++idx) {
      const Request& request = requests[idx];
      PenaltyState history = request.history;
      int32_t num_accepted = 0;
      int32_t last = -1;
      while (true) {
        const std::span<const float> row(
            logits.data() + (first + num_accepted) * size_t(vocab_size()), vocab_size());
        last = sampler
                   .Sample(row, request.params, history,
                           static_cast<uint64_t>(request.position + num_accepted))
                   .value()
                   .id;
        EXPECT_EQ(outcome.rows[first + num_accepted].id, last) << "row " << num_accepted;
        history.AddOutput(last);
        ++num_accepted;
        if (num_accepted > static_cast<int32_t>(request.drafts.size()) ||
            request.drafts[num_accepted - 1] != last) {
          break;
        }
      }
      EXPECT_EQ(outcome.rows[first].num_accepted, num_accepted);
      EXPECT_EQ(outcome.slots[idx].last_token, last);
      EXPECT_EQ(outcome.slots[idx].length, request.position + num_accepted);
      ASSERT_EQ(outcome.histories[idx].size(), history.entries().size());
      for (size_t entry = 0; entry < history.entries().size(); ++entry) {
        EXPECT_EQ(outcome.histories[idx][entry].id, history.entries()[entry].id);
        EXPECT_EQ(outcome.histories[idx][entry].output_count,
                  history.entries()[entry].output_count);
      }
      first += 1 + request.drafts.size();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SamplingTest, testing::Values(1003, 2048, 262144),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace lapidary::cuda
