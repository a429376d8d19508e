// Answers of an engine with drafts and without, for tests that they are the same.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <random>

#include "grammar/constraint.h"
#include "grammar/matcher.h"
#include "load/load_model.h"
#include "model/assistant_preset.h"
#include "model/shard.h"
#include "tests/test_models.h"

namespace lapidary {

struct Answer {
  std::vector<SampledToken> tokens;
  std::optional<FinishReason> finish;
  RequestUsage usage;
  std::string error;
};

struct Mode {
  std::string name;
  int num_drafts = 0;  // 0: no drafting
  bool adapt = false;
  DraftMethod method = DraftMethod::kAssistant;
  DraftDraw draw = DraftDraw::kCoupled;
  DraftPosition position = DraftPosition::kOfLastToken;
  int max_num_batched_tokens = 256;
  int64_t pool_tokens = 4096;
  bool prefix_caching = false;
  bool overlap = true;
};

class DraftedAnswersTest : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int kNewTokens = 40;

  explicit DraftedAnswersTest(const DeviceChoice& device, bool fast_math = false, int num_ranks = 1,
                              std::optional<KvFormat> kv_format = {})
      : device_(device), fast_math_(fast_math), num_ranks_(num_ranks), kv_format_(kv_format) {}

  // A bundled pair, whose drafts are mostly accepted, or a random one, whose are hardly ever.
  void SetUp() override {
    const std::string name = GetParam();
    if (name.starts_with("pebble")) {
      path_ = std::filesystem::path(LAPIDARY_SOURCE_DIR) / "models" / name;
      return;
    }
    path_ = MakeTestModel(name, {.seed = 5}, directory_);
    ThreadPool threads(2);
    const bool ordered = name == "odd-shared-kv-is-v";
    const Json assistant = TinyAssistantConfig(TestConfig(name), ordered).value();
    const Status status =
        WriteSyntheticAssistant(assistant, {.seed = 5}, path_.string() + "-assistant", threads);
    ASSERT_TRUE(status.ok()) << status.error().message;
  }

  // What differs from model to model is the arithmetic, not the bookkeeping.
  std::vector<Mode> Modes() const {
    std::vector<Mode> modes = {
        {.name = "one draft", .num_drafts = 1},
        {.name = "three drafts, step by step", .num_drafts = 3, .overlap = false},
        {.name = "seven likeliest drafts", .num_drafts = 7, .draw = DraftDraw::kLikeliest},
        {.name = "as many as pay", .num_drafts = 4, .adapt = true},
        {.name = "from p - 1", .num_drafts = 4, .position = DraftPosition::kBeforeIt},
        {.name = "small chunks", .num_drafts = 3, .max_num_batched_tokens = 11},
        {.name = "a pool too small", .num_drafts = 3, .pool_tokens = 512},
        {.name = "prefix cache", .num_drafts = 3, .prefix_caching = true},
    };
    if (!GetParam().starts_with("pebble-e")) modes.resize(5);
    if (device_.kind != DeviceKind::kCpu) return modes;
    for (const bool is_small : {false, true}) {
      if (is_small && !GetParam().starts_with("pebble-e")) break;
      for (const DraftMethod method : {DraftMethod::kNgram, DraftMethod::kAuto}) {
        modes.push_back({.name = method == DraftMethod::kNgram ? "text that repeats" : "both",
                         .num_drafts = 5,
                         .method = method,
                         .pool_tokens = is_small ? 512 : 4096,
                         .prefix_caching = is_small});
      }
    }
    return modes;
  }

  std::unique_ptr<Engine> Load(const Mode& mode) const { return Load(mode, device_); }
  std::unique_ptr<Engine> Load(const Mode& mode, const DeviceChoice& device) const {
    const ModelDescription model = DescribeModel(path_.string()).value();
    LoadOptions options;
    options.num_threads = 2;
    options.device = device;
    options.fast_math = fast_math_;
    options.num_ranks = num_ranks_;
    // The one mode in which a row's bits do not depend on the rows beside it.
    options.cuda.batch_invariant = true;
    options.limits = {.max_num_seqs = 16,
                      .max_num_batched_tokens = mode.max_num_batched_tokens,
                      .max_model_len = 512};
    options.kv_format = kv_format_;
    const KvLayout layout = MakeKvLayout(ShardOf(model.plan, 0, num_ranks_)->plan,
                                         kv_format_.value_or(DefaultKvFormat(device.kind)));
    options.kv_cache_memory_bytes =
        PagesForSequence(model.plan, layout, mode.pool_tokens, SchedulerLimits{}.sliding_slack) *
        layout.page_bytes;
    options.drafting.enabled = mode.num_drafts > 0;
    options.drafting.num_drafts = std::max(mode.num_drafts, 1);
    options.drafting.adapt = mode.adapt;
    options.drafting.method = mode.method;
    options.drafting.lookup = {.min = 1, .max = 3};
    options.drafting.draw = mode.draw;
    options.drafting.position = mode.position;
    EngineOptions engine;
    engine.overlap = mode.overlap;
    engine.limits.prefix_caching = mode.prefix_caching;
    engine.check_kv = true;
    engine.check_kv_report = directory_.path() / "violation.json";
    auto loaded = LoadEngine(model, options, engine);
    CHECK(loaded.ok()) << loaded.error().message;
    CHECK_EQ(loaded->assistant.empty(), mode.num_drafts == 0 || mode.method == DraftMethod::kNgram);
    return std::move(loaded->engine);
  }

  // All at once; `num_copies` of each.
  static std::vector<Answer> Run(Engine& engine, const std::vector<SequenceSpec>& specs,
                                 int num_copies = 1) {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<RequestId, Answer> answers;
    size_t num_ended = 0;
    std::vector<RequestId> order;
    for (const SequenceSpec& spec : specs) {
      const auto ids = engine.Submit(spec, num_copies, [&](RequestEvent event) {
        const std::lock_guard lock(mutex);
        Answer& answer = answers[event.id];
        answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
        if (!event.finish) return;
        answer.finish = event.finish;
        answer.usage = event.usage;
        answer.error = event.error;
        ++num_ended;
        changed.notify_all();
      });
      CHECK(ids.ok()) << ids.error().message;
      order.insert(order.end(), ids->begin(), ids->end());
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_ended == order.size(); });
    std::vector<Answer> ordered;
    for (const RequestId id : order) ordered.push_back(answers.at(id));
    return ordered;
  }

  // Prompts of many lengths under every kind of sampling.
  std::vector<SequenceSpec> Specs() const {
    const ModelPlan plan = DescribeModel(path_.string())->plan;
    std::vector<SamplingParams> settings(8);
    settings[0].temperature = 0.0f;
    settings[1].temperature = 1.0f;
    settings[2] = {.temperature = 0.7f, .top_k = 20, .top_p = 0.9f};
    settings[3] = {.temperature = 1.3f, .min_p = 0.05f, .num_logprobs = 3};
    settings[4] = {.temperature = 0.8f,
                   .repetition_penalty = 1.3f,
                   .presence_penalty = 0.5f,
                   .frequency_penalty = 0.2f,
                   .num_logprobs = 0};
    settings[5] = {.temperature = 0.0f, .repetition_penalty = 1.2f, .frequency_penalty = 0.4f};
    settings[6] = {
        .temperature = 0.9f, .logit_bias = {{7, 4.0f}, {11, -3.0f}}, .suppress_tokens = {3, 4, 5}};
    settings[7].temperature = 1.0f;
    for (int32_t id = 10; id < 60; ++id) settings[7].allowed_tokens.push_back(id);
    std::vector<SequenceSpec> specs;
    for (size_t idx = 0; idx < settings.size(); ++idx) {
      settings[idx].seed = 100 + idx;
      SequenceSpec spec;
      for (size_t at = 0; at < 3 + 17 * idx; ++at) {
        spec.prompt.push_back(static_cast<int32_t>((at * 31 + idx * 7 + 2) % plan.vocab_size));
      }
      spec.max_new_tokens = kNewTokens;
      spec.sampling = std::make_shared<SamplingParams>(settings[idx]);
      // Some end at a token that comes now and then.
      if (idx % 3 == 1) spec.stop_ids = {static_cast<int32_t>(idx), 106, 1};
      specs.push_back(std::move(spec));
    }
    // Two of them under a grammar.
    for (const size_t idx : {size_t{2}, size_t{4}}) {
      specs.push_back(specs[idx]);
      specs.back().grammar = SomeGrammar(plan.vocab_size);
      specs.back().stop_ids = {1};
    }
    return specs;
  }

  // The same with rows of an image in place of some of its prompt's.
  static SequenceSpec BehindAnImage(SequenceSpec spec, const ModelPlan& plan) {
    constexpr int32_t kPosition = 9;
    constexpr int32_t kLength = 40;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    auto rows = std::make_shared<std::vector<float>>(int64_t{kLength} * plan.hidden_size);
    for (float& value : *rows) value = normal(random);
    spec.media = std::make_shared<SoftTokenRuns>(SoftTokenRuns{
        {.position = kPosition, .length = kLength, .is_image = true, .rows = std::move(rows)}});
    spec.identity.media = {{.position = kPosition, .low = 7}};
    return spec;
  }

  // Over tokens of one or two letters.
  static std::shared_ptr<const grammar::CompiledGrammar> SomeGrammar(
      int32_t vocab_size, const std::string& regex = "(a[a-m]|b[c-x]|[c-z][aeiou]|[e-k])+") {
    std::vector<std::string> bytes(vocab_size);
    for (int32_t id = 2; id < vocab_size; ++id) {
      bytes[id] = static_cast<char>('a' + id % 26);
      if (id / 26 % 3 != 0) bytes[id] += static_cast<char>('a' + id / 26 % 26);
    }
    auto compiled = grammar::Compile(
        {.kind = grammar::Constraint::Kind::kRegex, .text = regex},
        {.vocabulary = std::make_shared<grammar::TokenVocabulary>(bytes), .stop_tokens = {1}});
    CHECK(compiled.ok()) << compiled.error().message;
    return *compiled;
  }

  static void ExpectInGrammar(const std::vector<SequenceSpec>& specs,
                              const std::vector<Answer>& answers) {
    int num_constrained = 0;
    for (size_t idx = 0; idx < specs.size(); ++idx) {
      if (specs[idx].grammar == nullptr) continue;
      ++num_constrained;
      EXPECT_GT(answers[idx].tokens.size(), 3u);
      grammar::Matcher matcher(specs[idx].grammar);
      for (const SampledToken& token : answers[idx].tokens) {
        EXPECT_TRUE(matcher.Accept(token.id).value()) << "request " << idx;
      }
    }
    EXPECT_EQ(num_constrained, 2);
  }

  static void ExpectSame(const std::vector<Answer>& expected, const std::vector<Answer>& actual,
                         const std::string& mode) {
    ASSERT_EQ(expected.size(), actual.size());
    for (size_t idx = 0; idx < expected.size(); ++idx) {
      SCOPED_TRACE(mode + ", request " + std::to_string(idx));
      EXPECT_EQ(actual[idx].error, "");
      EXPECT_EQ(expected[idx].finish, actual[idx].finish);
      ASSERT_EQ(expected[idx].tokens.size(), actual[idx].tokens.size());
      for (size_t at = 0; at < expected[idx].tokens.size(); ++at) {
        const SampledToken& a = expected[idx].tokens[at];
        const SampledToken& b = actual[idx].tokens[at];
        ASSERT_EQ(a.id, b.id) << "token " << at;
        ASSERT_EQ(a.logprob, b.logprob) << "token " << at;
        ASSERT_EQ(a.num_top, b.num_top);
        for (int32_t rank = 0; rank < a.num_top; ++rank) {
          ASSERT_EQ(a.top[rank].id, b.top[rank].id);
          ASSERT_EQ(a.top[rank].logprob, b.top[rank].logprob);
        }
      }
    }
  }

  void ExpectTheSameInEveryMode() const {
    const std::vector<SequenceSpec> specs = Specs();
    const std::vector<Answer> expected = Run(*Load({.name = "plain", .overlap = false}), specs);
    ExpectInGrammar(specs, expected);
    for (const Mode& mode : Modes()) {
      const auto engine = Load(mode);
      ExpectSame(expected, Run(*engine, specs), mode.name);
      // Again: what is left of the first run must not show.
      ExpectSame(expected, Run(*engine, specs), mode.name + ", again");
      const EngineStats stats = engine->stats();
      EXPECT_GT(stats.drafts.num_rounds, 0u) << mode.name;
      const auto rounds_of = [&](DraftSource source) {
        return stats.drafts.by_source[static_cast<size_t>(source)].num_rounds;
      };
      EXPECT_EQ(rounds_of(DraftSource::kAssistant) > 0, mode.method != DraftMethod::kNgram);
      EXPECT_EQ(rounds_of(DraftSource::kNgram) > 0, mode.method != DraftMethod::kAssistant);
      EXPECT_EQ(stats.scheduler.num_preemptions > 0, mode.pool_tokens == 512) << mode.name;
    }
  }

  // A request that may say nothing, and one whose grammar leaves nothing that it may say: one
  // fails at its first token, the other at its fourth.
  std::vector<SequenceSpec> FailingSpecs() const {
    constexpr int32_t kLetterA = 78;
    std::vector<SequenceSpec> specs = Specs();
    specs.resize(2);
    specs[0].sampling = std::make_shared<SamplingParams>(
        SamplingParams{.suppress_tokens = {kLetterA}, .allowed_tokens = {kLetterA}});
    specs[1].sampling =
        std::make_shared<SamplingParams>(SamplingParams{.allowed_tokens = {kLetterA}});
    specs[1].grammar = SomeGrammar(DescribeModel(path_.string())->plan.vocab_size, "aaa[c-z]+");
    specs[1].stop_ids = {1};
    return specs;
  }

  void ExpectFailuresLeaveOthersAlone() const {
    const std::vector<SequenceSpec> specs = Specs();
    const std::vector<Answer> expected = Run(*Load({.name = "plain", .overlap = false}), specs);
    std::vector<SequenceSpec> mixed;
    for (const SequenceSpec& spec : specs) {
      for (const SequenceSpec& failing : FailingSpecs()) mixed.push_back(failing);
      mixed.push_back(spec);
    }
    const std::vector<Mode> modes = {
        {.name = "plain"},
        {.name = "drafted", .num_drafts = 3, .prefix_caching = true},
        {.name = "drafted step by step", .num_drafts = 3, .overlap = false}};
    for (const Mode& mode : modes) {
      const auto engine = Load(mode);
      std::vector<Answer> others;
      const std::vector<Answer> answers = Run(*engine, mixed);
      for (size_t idx = 0; idx < answers.size(); ++idx) {
        if (idx % 3 == 2) {
          others.push_back(answers[idx]);
          continue;
        }
        EXPECT_EQ(answers[idx].finish, FinishReason::kError) << mode.name;
        EXPECT_NE(answers[idx].error.find("no token may be drawn"), std::string::npos)
            << answers[idx].error;
        EXPECT_EQ(answers[idx].tokens.size(), idx % 3 == 0 ? 0u : 3u) << mode.name;
      }
      ExpectSame(expected, others, mode.name + ", beside failing ones");
      EXPECT_EQ(engine->stats().scheduler.num_pages_in_use[kFullGroup], 0);
    }
  }

  // The longer prompts, one of them under a grammar.
  void ExpectTheSameBehindImages() const {
    const ModelPlan plan = DescribeModel(path_.string())->plan;
    if (!plan.media_tokens) GTEST_SKIP() << "the model sees nothing";
    std::vector<SequenceSpec> without;
    std::vector<SequenceSpec> specs;
    for (const SequenceSpec& spec : Specs()) {
      if (spec.prompt.size() < 54) continue;
      without.push_back(spec);
      specs.push_back(BehindAnImage(spec, plan));
    }
    ASSERT_TRUE(specs.back().grammar != nullptr);
    const auto plain = Load({.name = "plain", .overlap = false});
    const std::vector<Answer> expected = Run(*plain, specs);
    const std::vector<Answer> unseen = Run(*plain, without);
    int num_changed = 0;
    for (size_t idx = 0; idx < specs.size(); ++idx) {
      num_changed += expected[idx].tokens[0].id != unseen[idx].tokens[0].id ||
                     expected[idx].tokens.size() != unseen[idx].tokens.size();
    }
    EXPECT_GT(num_changed, 0) << "the image does not show";
    const auto drafted = Load({.name = "drafted", .num_drafts = 3, .prefix_caching = true});
    ExpectSame(expected, Run(*drafted, specs), "drafted");
    ExpectSame(expected, Run(*drafted, specs), "from the prefix cache");
    ExpectSame(unseen, Run(*drafted, without), "the same placeholders without an image");
    EXPECT_GT(drafted->stats().drafts.num_rounds, 0u);
  }

  const DeviceChoice device_;
  const bool fast_math_;
  const int num_ranks_;
  const std::optional<KvFormat> kv_format_;  // absent: the device's
  TemporaryDirectory directory_;
  std::filesystem::path path_;
};

}  // namespace lapidary
