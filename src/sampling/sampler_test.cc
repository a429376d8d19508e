#include "sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "sampling/reference_sampler.h"

namespace lapidary {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const PenaltyState kNoHistory;

std::vector<float> RandomRow(int32_t vocab_size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> noise(0.0f, 3.0f);
  std::vector<float> row(static_cast<size_t>(vocab_size));
  for (float& x : row) x = noise(random);
  return row;
}

std::set<int32_t> DrawnIds(std::span<const float> row, const SamplingParams& params,
                           int num_draws) {
  Sampler sampler(static_cast<int32_t>(row.size()));
  std::set<int32_t> ids;
  for (int position = 0; position < num_draws; ++position) {
    ids.insert(sampler.Sample(row, params, kNoHistory, static_cast<uint64_t>(position)).value().id);
  }
  return ids;
}

TEST(Sampler, TokenDependsOnRowSeedAndPositionAlone) {
  constexpr int32_t kVocab = 5000;
  const SamplingParams settings[] = {
      {}, {.top_k = 64, .top_p = 0.95f}, {.top_p = 0.9f}, {.min_p = 0.02f}, {.top_k = 4500}};
  struct Call {
    uint32_t row_seed;
    uint64_t seed, position;
    size_t setting;
    int32_t id = -1;
  };
  std::vector<Call> calls;
  std::mt19937_64 random(5);
  for (size_t index = 0; index < 200; ++index) {
    calls.push_back({static_cast<uint32_t>(random() % 20), random(), random(), index % 5});
  }
  for (Call& call : calls) {
    Sampler fresh(kVocab);
    SamplingParams params = settings[call.setting];
    params.seed = call.seed;
    call.id = fresh.Sample(RandomRow(kVocab, call.row_seed), params, kNoHistory, call.position)
                  .value()
                  .id;
  }
  Sampler used(kVocab);
  std::shuffle(calls.begin(), calls.end(), random);
  for (const Call& call : calls) {
    SamplingParams params = settings[call.setting];
    params.seed = call.seed;
    const auto token =
        used.Sample(RandomRow(kVocab, call.row_seed), params, kNoHistory, call.position);
    EXPECT_EQ(token.value().id, call.id);
  }
}

// A toy model: the row after a history. Drafts are guesses that are right now and then.
TEST(Sampler, DraftsDoNotChangeTheOutput) {
  constexpr int32_t kVocab = 12;
  constexpr size_t kTokens = 400;
  const auto row_after = [](const std::vector<int32_t>& history) {
    return RandomRow(kVocab, static_cast<uint32_t>(history.size() * 31 + history.back()));
  };
  const SamplingParams params{
      .top_k = 8, .top_p = 0.9f, .repetition_penalty = 1.1f, .frequency_penalty = 0.2f, .seed = 3};
  const std::vector<int32_t> prompt = {1, 2, 3};
  const auto generate = [&](size_t num_drafts) {
    Sampler sampler(kVocab);
    std::mt19937 guesses(static_cast<uint32_t>(num_drafts));
    std::vector<int32_t> tokens = prompt;
    PenaltyState history;
    history.AddPrompt(prompt);
    while (tokens.size() < kTokens) {
      // Rows of one verification: after the tokens, and after each draft on top of them.
      std::vector<int32_t> drafted = tokens;
      std::vector<std::vector<float>> rows = {row_after(drafted)};
      for (size_t draft = 0; draft < num_drafts; ++draft) {
        drafted.push_back(static_cast<int32_t>(guesses() % kVocab));
        rows.push_back(row_after(drafted));
      }
      for (const std::vector<float>& row : rows) {
        const int32_t id = sampler.Sample(row, params, history, tokens.size()).value().id;
        tokens.push_back(id);
        history.AddOutput(id);
        if (tokens.size() > drafted.size() || drafted[tokens.size() - 1] != id) break;
      }
    }
    tokens.resize(kTokens);
    return tokens;
  };
  const std::vector<int32_t> plain = generate(0);
  for (const size_t num_drafts : {1, 2, 5}) EXPECT_EQ(generate(num_drafts), plain);
}

TEST(Sampler, AFilterThatKeepsTheWinnerDoesNotChangeIt) {
  const std::vector<float> row = RandomRow(3000, 8);
  Sampler sampler(3000);
  for (uint64_t position = 0; position < 300; ++position) {
    const int32_t plain = sampler.Sample(row, {}, kNoHistory, position).value().id;
    const auto rank =
        std::count_if(row.begin(), row.end(), [&](float x) { return x > row[plain]; });
    const SamplingParams filtered{.top_k = static_cast<int32_t>(rank) + 1};
    EXPECT_EQ(sampler.Sample(row, filtered, kNoHistory, position).value().id, plain);
  }
}

TEST(Sampler, NeighbouringPositionsAndSeedsAreIndependent) {
  const std::vector<float> row(16, 0.0f);
  Sampler sampler(16);
  constexpr int kDraws = 32000;
  for (const bool step_seed : {false, true}) {
    int num_equal = 0;
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      SamplingParams params{.seed = draw};
      const int32_t first = sampler.Sample(row, params, kNoHistory, draw).value().id;
      if (step_seed) params.seed = draw + 1;
      const uint64_t position = step_seed ? draw : draw + 1;
      num_equal += sampler.Sample(row, params, kNoHistory, position).value().id == first;
    }
    // Binomial(32000, 1/16): mean 2000, deviation 43.
    EXPECT_NEAR(num_equal, kDraws / 16, 5 * 43);
  }
}

TEST(Sampler, KeptSetsAreExactOnRowsFullOfTies) {
  std::mt19937 random(21);
  for (int trial = 0; trial < 40; ++trial) {
    const int32_t vocab_size = 1 + static_cast<int32_t>(random() % 150);
    std::vector<float> row(static_cast<size_t>(vocab_size));
    for (float& x : row) x = static_cast<float>(random() % 3) * 0.5f;  // Three values only.
    const SamplingParams params{.temperature = 2.0f,
                                .top_k = static_cast<int32_t>(random() % 20),
                                .top_p = trial % 2 == 0 ? 1.0f : 0.63f};
    const std::vector<double> probability =
        ReferenceDistribution(ReferenceLogits(row, params, {}, {}), params);
    std::set<int32_t> expected;
    for (int32_t id = 0; id < vocab_size; ++id) {
      if (probability[id] > 0) expected.insert(id);
    }
    // A token of weight 1/2 among 150 is missed by 6,000 draws with probability e^-20.
    EXPECT_EQ(DrawnIds(row, params, 6000), expected) << "trial " << trial;
  }
}

TEST(Sampler, GreedyTakesTheLowestIdAmongTheLargest) {
  const SamplingParams greedy{.temperature = 0.0f};
  for (int32_t vocab_size : {1, 2, 63, 64, 65, 200, 1000}) {
    Sampler sampler(vocab_size);
    for (int32_t best = 0; best < vocab_size; ++best) {
      std::vector<float> row(static_cast<size_t>(vocab_size), -2.0f);
      row[best] = 1.5f;
      row[vocab_size - 1] = 1.5f;
      ASSERT_EQ(sampler.Sample(row, greedy, kNoHistory, 3).value().id, best);
    }
  }
}

TEST(Sampler, TinyTopPAndMinPOneKeepTheLikeliest) {
  const std::vector<float> row = {0.0f, 5.0f, 5.0f, 4.999f};
  EXPECT_THAT(DrawnIds(row, {.top_p = 1e-30f}, 500), testing::ElementsAre(1));
  EXPECT_THAT(DrawnIds(row, {.min_p = 1.0f}, 500), testing::ElementsAre(1, 2));
  EXPECT_THAT(DrawnIds(row, {.top_k = 1}, 500), testing::ElementsAre(1));
}

TEST(Sampler, MaskedTokensAreNeverDrawn) {
  std::vector<float> row(1000, -kInfinity);
  row[7] = -50.0f;
  row[999] = -51.0f;
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.top_k = 64, .top_p = 0.99f},
        SamplingParams{.top_p = 0.99f}, SamplingParams{.temperature = 1e30f}}) {
    EXPECT_THAT(DrawnIds(row, params, 500), testing::ElementsAre(7, 999));
  }
}

TEST(Sampler, ExtremeTemperaturesAndLogitsStayDefined) {
  const std::vector<float> row = {-3e38f, 1e4f, 1.0001e4f, 0.0f, 3e38f, -kInfinity};
  for (const float temperature : {1.1e-5f, 1e-4f, 1.0f, 1e20f, 3e38f}) {
    for (const float top_p : {1.0f, 0.99999994f, 0.5f}) {
      for (const int32_t id : DrawnIds(row, {.temperature = temperature, .top_p = top_p}, 50)) {
        EXPECT_NE(id, 5);
      }
    }
  }
  // Large logits at a small temperature: the nucleus bound must not round past the nucleus.
  std::vector<float> large(3000);
  for (size_t id = 0; id < large.size(); ++id) large[id] = 9000.0f + 0.001f * (id % 17);
  EXPECT_FALSE(DrawnIds(large, {.temperature = 2e-5f, .top_p = 0.9999f}, 50).empty());
}

TEST(Sampler, BadRowsAreErrors) {
  Sampler sampler(3);
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingParams params{.temperature = temperature};
    for (const std::vector<float>& row :
         {std::vector<float>{0.0f, kNan, 1.0f}, std::vector<float>{0.0f, 1.0f, kInfinity},
          std::vector<float>(3, -kInfinity), std::vector<float>(3, kNan)}) {
      EXPECT_FALSE(sampler.Sample(row, params, kNoHistory, 0).ok());
    }
  }
  const SamplingParams all_suppressed{.suppress_tokens = {0, 1, 2}};
  EXPECT_THAT(
      sampler.Sample(std::vector<float>(3, 1.0f), all_suppressed, kNoHistory, 0).error().message,
      testing::HasSubstr("no token may be drawn"));
  const SamplingParams hides_nan{.suppress_tokens = {1}, .num_logprobs = 0};
  EXPECT_FALSE(sampler.Sample(std::vector<float>{0.0f, kNan, 1.0f}, hides_nan, kNoHistory, 0).ok());
}

TEST(Sampler, NothingButAllowedTokensIsDrawn) {
  constexpr int32_t kVocab = 3001;
  const std::vector<int32_t> allowed = {7, 300, 301, 2999};
  Sampler sampler(kVocab);
  std::set<int32_t> drawn;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const std::vector<float> row = RandomRow(kVocab, seed);
    const SamplingParams greedy{.temperature = 0.0f, .allowed_tokens = allowed};
    const int32_t best = *std::max_element(allowed.begin(), allowed.end(),
                                           [&](int32_t a, int32_t b) { return row[a] < row[b]; });
    EXPECT_EQ(sampler.Sample(row, greedy, kNoHistory, 0).value().id, best);
    const SamplingParams warm{.temperature = 1e4f, .allowed_tokens = allowed, .seed = seed};
    for (uint64_t position = 0; position < 20; ++position) {
      drawn.insert(sampler.Sample(row, warm, kNoHistory, position).value().id);
    }
  }
  EXPECT_EQ(drawn, std::set<int32_t>(allowed.begin(), allowed.end()));
  const SamplingParams contradictory{.suppress_tokens = {7}, .allowed_tokens = {7}};
  EXPECT_FALSE(sampler.Sample(RandomRow(kVocab, 1), contradictory, kNoHistory, 0).ok());
}

TEST(Sampler, NothingOutsideTheMaskIsDrawn) {
  constexpr int32_t kVocab = 70;
  Sampler sampler(kVocab);
  std::vector<float> logits(kVocab);
  for (int32_t id = 0; id < kVocab; ++id) logits[id] = static_cast<float>(id % 7);
  std::vector<uint32_t> allowed((kVocab + 31) / 32);
  for (const int32_t id : {3, 33, 64}) allowed[id / 32] |= 1u << (id % 32);
  // 3, 33 % 7 = 5, 64 % 7 = 1: the likeliest allowed one is not the likeliest of all.
  EXPECT_EQ(sampler.Sample(logits, {.temperature = 0.0f}, {}, 0, allowed).value().id, 33);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const SamplingParams warm{.temperature = 1e4f, .seed = seed};
    const int32_t id = sampler.Sample(logits, warm, {}, seed, allowed).value().id;
    EXPECT_TRUE(id == 3 || id == 33 || id == 64) << id;
  }
  std::fill(allowed.begin(), allowed.end(), 0);
  EXPECT_FALSE(sampler.Sample(logits, {}, {}, 0, allowed).ok());
}

TEST(Sampler, LogprobsAreThoseOfTheRawRow) {
  constexpr int32_t kVocab = 3001;
  std::vector<float> row = RandomRow(kVocab, 4);
  row[5] = row[6] = row[7] = 12.0f;  // Equal: listed by id.
  double total = 0.0;
  for (const float x : row) total += std::exp(static_cast<double>(x));
  const SamplingParams params{.temperature = 0.3f,
                              .top_k = 5,
                              .logit_bias = {{5, -100.0f}},
                              .suppress_tokens = {6},
                              .num_logprobs = 20};
  Sampler sampler(kVocab);
  const SampledToken token = sampler.Sample(row, params, kNoHistory, 9).value();
  // Sums keep 2^-36 per token of relative mass and weights a few parts in 10^7.
  EXPECT_NEAR(token.logprob, row[token.id] - std::log(total), 2e-6);
  ASSERT_EQ(token.top_logprobs().size(), 20u);
  std::vector<int32_t> order(kVocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  for (size_t rank = 0; rank < 20; ++rank) {
    EXPECT_EQ(token.top[rank].id, order[rank]);
    EXPECT_NEAR(token.top[rank].logprob, row[order[rank]] - std::log(total), 2e-6);
  }

  Sampler tiny(2);
  const SamplingParams ask_many{.num_logprobs = 20};
  const SampledToken small =
      tiny.Sample(std::vector<float>{1.0f, -kInfinity}, ask_many, kNoHistory, 0).value();
  ASSERT_EQ(small.top_logprobs().size(), 2u);
  EXPECT_EQ(small.logprob, 0.0f);
  EXPECT_EQ(small.top[1].logprob, -kInfinity);
  EXPECT_EQ(tiny.Sample(std::vector<float>{1.0f, 2.0f}, {}, kNoHistory, 0).value().num_top, 0);
}

TEST(Sampler, AScoreIsTheLogprobOfTheGivenToken) {
  constexpr int32_t kVocab = 3001;
  const std::vector<float> row = RandomRow(kVocab, 5);
  Sampler sampler(kVocab);
  for (const int32_t id : {0, 17, kVocab - 1}) {
    // The same token forced by a bias, which the logprobs of a sample ignore.
    const SamplingParams params{
        .temperature = 0.0f, .logit_bias = {{id, 100.0f}}, .num_logprobs = 3};
    const SampledToken sampled = sampler.Sample(row, params, kNoHistory, 0).value();
    const SampledToken score = sampler.Score(row, id, 3).value();
    ASSERT_EQ(sampled.id, id);
    EXPECT_EQ(score.id, id);
    EXPECT_EQ(score.logprob, sampled.logprob);
    ASSERT_EQ(score.num_top, 3);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(score.top[rank].id, sampled.top[rank].id);
      EXPECT_EQ(score.top[rank].logprob, sampled.top[rank].logprob);
    }
  }
  EXPECT_EQ(sampler.Score(row, 0, 0).value().num_top, 0);
  std::vector<float> broken = row;
  broken[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(sampler.Score(broken, 0, 0).ok());
}

TEST(PenaltyState, CountsLikeAPlainMap) {
  std::mt19937 random(2);
  PenaltyState state;
  std::vector<int32_t> prompt(500);
  for (int32_t& id : prompt) id = static_cast<int32_t>(random() % 262144);
  state.AddPrompt(prompt);
  std::set<int32_t> seen(prompt.begin(), prompt.end());
  std::vector<int> counts(262144, 0);
  for (int step = 0; step < 20000; ++step) {
    const auto id = static_cast<int32_t>(random() % (step % 2 == 0 ? 262144 : 300));
    state.AddOutput(id);
    ++counts[id];
    seen.insert(id);
  }
  ASSERT_EQ(state.entries().size(), seen.size());
  for (const PenaltyState::Entry& entry : state.entries()) {
    ASSERT_EQ(seen.count(entry.id), 1u);
    ASSERT_EQ(entry.output_count, counts[entry.id]);
  }
}

TEST(SamplingParams, AcceptsTheEdgesAndRefusesBeyond) {
  constexpr int32_t kVocab = 100;
  EXPECT_TRUE(SamplingParams{}.Validate(kVocab).ok());
  const SamplingParams edges{.temperature = 0,
                             .top_k = -1,
                             .top_p = 1e-6f,
                             .min_p = 1,
                             .repetition_penalty = 0.01f,
                             .presence_penalty = -2,
                             .frequency_penalty = 2,
                             .logit_bias = {{0, -100}, {99, 100}},
                             .suppress_tokens = {0, 99},
                             .num_logprobs = 20};
  EXPECT_TRUE(edges.Validate(kVocab).ok());
  const SamplingParams bad[] = {{.temperature = -0.1f},
                                {.temperature = kNan},
                                {.temperature = kInfinity},
                                {.top_k = -2},
                                {.top_p = 0},
                                {.top_p = 1.01f},
                                {.top_p = kNan},
                                {.min_p = -0.1f},
                                {.min_p = 1.5f},
                                {.min_p = kNan},
                                {.repetition_penalty = 0},
                                {.repetition_penalty = kInfinity},
                                {.repetition_penalty = kNan},
                                {.presence_penalty = 2.1f},
                                {.presence_penalty = kNan},
                                {.frequency_penalty = -2.1f},
                                {.logit_bias = {{100, 0}}},
                                {.logit_bias = {{-1, 0}}},
                                {.logit_bias = {{0, 101}}},
                                {.logit_bias = {{0, kNan}}},
                                {.suppress_tokens = {100}},
                                {.suppress_tokens = {-1}},
                                {.allowed_tokens = {100}},
                                {.allowed_tokens = {-1}},
                                {.num_logprobs = 21},
                                {.num_logprobs = -2},
                                {.logit_bias = std::vector<LogitBias>(1025)}};
  for (const SamplingParams& params : bad) {
    const Status status = params.Validate(kVocab);
    ASSERT_FALSE(status.ok()) << &params - bad;
    EXPECT_FALSE(status.error().message.empty());
  }
}

}  // namespace
}  // namespace lapidary
