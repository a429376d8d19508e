#include "engine/engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <random>

#include "engine/check_kv.h"
#include "engine/fake_executor.h"
#include "executor/cpu/cpu_executor.h"
#include "model/presets.h"
#include "model/tensor_sources.h"

namespace lapidary {
namespace {

ModelPlan PresetPlan(const std::string& name) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(name), name).value()).value();
}

// The tokens of one request, complete when its final event came.
struct Answer {
  std::vector<int32_t> tokens;
  RequestEvent final_event;
};

class Collector {
 public:
  EventSink sink() {
    return [this](RequestEvent event) {
      EXPECT_FALSE(is_done_.load()) << "an event after the final one";
      for (const SampledToken& token : event.tokens) answer_.tokens.push_back(token.id);
      if (!event.finish) return;
      is_done_ = true;
      answer_.final_event = std::move(event);
      promise_.set_value(answer_);
    };
  }
  Answer Wait() { return answered_.get(); }

 private:
  std::atomic<bool> is_done_{false};
  Answer answer_;
  std::promise<Answer> promise_;
  const std::shared_future<Answer> answered_ = promise_.get_future().share();
};

SequenceSpec Spec(std::vector<int32_t> prompt, int max_new_tokens, SamplingParams sampling = {}) {
  SequenceSpec spec;
  spec.cache_points = {static_cast<int32_t>(prompt.size()) - 1};
  spec.prompt = std::move(prompt);
  spec.max_new_tokens = max_new_tokens;
  spec.sampling = std::make_shared<SamplingParams>(std::move(sampling));
  return spec;
}

std::vector<int32_t> RandomIds(int seed, int count, int vocab_size) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab_size);
  return ids;
}

std::unique_ptr<Engine> FakeEngine(int num_pages, const EngineOptions& options) {
  const ModelPlan plan = PresetPlan("tiny-e");
  return std::make_unique<Engine>(
      std::make_unique<FakeExecutor>(plan, MakeKvLayout(plan, KvFormat::kF32, {4, 8}), num_pages),
      options);
}

// Says that each of its steps took 40 ms.
class TimedExecutor : public FakeExecutor {
 public:
  static constexpr double kStepMs = 40.0;
  using FakeExecutor::FakeExecutor;

  StepOutput Collect() override {
    StepOutput output = FakeExecutor::Collect();
    output.device_ms = kStepMs;
    return output;
  }
};

TEST(EngineTest, StepsTakeAsLongAsTheDeviceSays) {
  const ModelPlan plan = PresetPlan("tiny-e");
  Engine engine(
      std::make_unique<TimedExecutor>(plan, MakeKvLayout(plan, KvFormat::kF32, {4, 8}), 200), {});
  Collector collector;
  const auto prompt = RandomIds(1, 9, plan.vocab_size);
  ASSERT_TRUE(engine.Submit(Spec(prompt, 30), collector.sink()).ok());
  collector.Wait();
  StepShape one_decode;
  one_decode.AddDecode(1, 30);
  EXPECT_NEAR(engine.stats().step_cost.Milliseconds(one_decode), TimedExecutor::kStepMs, 4.0);
}

TEST(EngineTest, EveryRequestEndsExactlyOnceWhateverThreadsDo) {
  auto engine = FakeEngine(200, {});
  const int vocab_size = engine->plan().vocab_size;
  constexpr int kThreads = 4;
  constexpr int kRequests = 60;
  std::vector<std::thread> threads;
  for (int thread_idx = 0; thread_idx < kThreads; ++thread_idx) {
    threads.emplace_back([&, thread_idx] {
      std::mt19937 random(thread_idx);
      for (int idx = 0; idx < kRequests; ++idx) {
        Collector collector;
        const auto prompt = RandomIds(static_cast<int>(random()), 1 + random() % 80, vocab_size);
        const int count = 1 + static_cast<int>(random() % 40);
        const auto id = engine->Submit(Spec(prompt, count), collector.sink());
        ASSERT_TRUE(id.ok()) << id.error().message;
        const bool cancels = random() % 3 == 0;
        if (cancels) engine->Cancel(*id);
        const Answer answer = collector.Wait();
        const auto expected = FakeExecutor::Continuation(prompt, count, vocab_size);
        if (answer.final_event.finish == FinishReason::kLength) {
          EXPECT_EQ(answer.tokens, expected);
        } else {
          EXPECT_TRUE(cancels);
          EXPECT_EQ(answer.final_event.finish, FinishReason::kCancelled);
        }
        EXPECT_EQ(answer.final_event.usage.output_tokens, static_cast<int>(answer.tokens.size()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine->stats().num_finished, uint64_t{kThreads * kRequests});
  EXPECT_EQ(engine->stats().scheduler.num_running, 0);
}

TEST(EngineTest, StoppingTheEngineEndsWhatIsOpen) {
  Collector collector;
  {
    auto engine = FakeEngine(200, {});
    ASSERT_TRUE(engine->Submit(Spec({1, 2, 3}, 500), collector.sink()).ok());
  }
  EXPECT_TRUE(collector.Wait().final_event.finish.has_value());
}

TEST(EngineTest, AFullQueueRefusesAndSaysSo) {
  EngineOptions options;
  options.max_queue = 3;
  options.limits.max_num_seqs = 1;
  std::deque<Collector> collectors(64);
  auto engine = FakeEngine(200, options);
  int num_refused = 0;
  for (Collector& collector : collectors) {
    const auto id = engine->Submit(Spec({1, 2, 3}, 400), collector.sink());
    if (!id.ok()) {
      ++num_refused;
      EXPECT_NE(id.error().message.find("queue is full"), std::string::npos);
      EXPECT_EQ(id.error().kind, ErrorKind::kBusy);
    }
  }
  EXPECT_GT(num_refused, 0);
}

TEST(EngineTest, WaitingIsNotAdvisedWhereItCannotHelp) {
  EngineOptions options;
  options.max_queue = 3;
  options.limits.max_model_len = 100;
  auto engine = FakeEngine(200, options);
  const EventSink no_event = [](const RequestEvent&) { ADD_FAILURE(); };
  auto bad_sampling = std::make_shared<SamplingParams>();
  bad_sampling->top_p = 2.0f;
  SequenceSpec bad_parameter = Spec({1}, 1);
  bad_parameter.sampling = bad_sampling;
  for (const SequenceSpec& spec :
       {Spec({1, 2, 3}, 98), Spec({}, 1), Spec({-1}, 1), Spec({1 << 30}, 1), bad_parameter}) {
    const auto id = engine->Submit(spec, no_event);
    ASSERT_FALSE(id.ok());
    EXPECT_EQ(id.error().kind, ErrorKind::kInvalid) << id.error().message;
  }
  const auto copies = engine->Submit(Spec({1}, 1), /*num_copies=*/4, no_event);
  ASSERT_FALSE(copies.ok());
  EXPECT_EQ(copies.error().kind, ErrorKind::kInvalid) << copies.error().message;
}

TEST(EngineTest, PreemptedRequestsDoNotFillTheQueue) {
  constexpr int kQueue = 8;
  constexpr int kTokens = 400;
  EngineOptions options;
  options.max_queue = kQueue;
  auto engine = FakeEngine(200, options);  // Eight of these need about twice as much.
  const int vocab_size = engine->plan().vocab_size;
  std::deque<Collector> collectors(kQueue);
  // Holds the engine up until all are there, and once some have begun and wait again.
  std::promise<void> all_are_there, one_waits_again, queue_is_full;
  const std::shared_future<void> may_begin = all_are_there.get_future().share();
  bool has_waited = false;
  const EventSink first_sink = [&, sink = collectors[0].sink()](RequestEvent event) {
    may_begin.wait();
    const SchedulerStats stats = engine->stats().scheduler;
    if (!has_waited && stats.num_preemptions > 0 && stats.num_waiting > 0) {
      has_waited = true;
      one_waits_again.set_value();
      queue_is_full.get_future().wait();
    }
    sink(std::move(event));
  };
  for (int idx = 0; idx < kQueue; ++idx) {
    const auto prompt = RandomIds(idx, 4, vocab_size);
    const EventSink sink = idx == 0 ? first_sink : collectors[idx].sink();
    ASSERT_TRUE(engine->Submit(Spec(prompt, kTokens), sink).ok());
  }
  all_are_there.set_value();
  auto waits_again = one_waits_again.get_future();
  ASSERT_EQ(waits_again.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  std::atomic<int> num_ended{0};
  const auto copies = engine->Submit(Spec({1, 2, 3}, kTokens), kQueue, [&](RequestEvent event) {
    num_ended += event.finish.has_value();
  });
  queue_is_full.set_value();
  ASSERT_TRUE(copies.ok()) << copies.error().message;
  for (int idx = 0; idx < kQueue; ++idx) {
    EXPECT_EQ(collectors[idx].Wait().tokens,
              FakeExecutor::Continuation(RandomIds(idx, 4, vocab_size), kTokens, vocab_size));
  }
  engine.reset();
  EXPECT_EQ(num_ended, kQueue);
}

TEST(EngineTest, APoolThatRunsDryCostsFewPreemptions) {
  constexpr int kRequests = 8;
  constexpr int kTokens = 400;
  auto engine = FakeEngine(200, {});  // About half of what they need.
  std::deque<Collector> collectors(kRequests);
  for (int idx = 0; idx < kRequests; ++idx) {
    const auto prompt = RandomIds(idx, 4, engine->plan().vocab_size);
    ASSERT_TRUE(engine->Submit(Spec(prompt, kTokens), collectors[idx].sink()).ok());
  }
  for (Collector& collector : collectors) collector.Wait();
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.scheduler.num_preemptions, 0u);
  EXPECT_LT(stats.scheduler.num_preemptions, 8u * kRequests);
  EXPECT_LT(stats.num_rows, 2u * kRequests * kTokens);
}

TEST(EngineTest, CopiesOfAPromptShareItAndDrawTheirOwnTokens) {
  auto engine = FakeEngine(400, {});
  std::mutex mutex;
  std::map<RequestId, std::vector<int32_t>> answers;
  std::promise<void> all_done;
  int num_done = 0;
  const auto prompt = RandomIds(3, 120, engine->plan().vocab_size);
  const auto ids = engine->Submit(Spec(prompt, 12), 4, [&](RequestEvent event) {
    const std::lock_guard lock(mutex);
    for (const SampledToken& token : event.tokens) answers[event.id].push_back(token.id);
    if (event.finish && ++num_done == 4) all_done.set_value();
  });
  ASSERT_TRUE(ids.ok());
  all_done.get_future().wait();
  const std::lock_guard lock(mutex);  // The sink of the last event has left this stack.
  EXPECT_EQ(answers.size(), 4u);
  EXPECT_EQ(engine->stats().scheduler.num_prefix_hit_tokens, 3u * 119u);
}

TEST(EngineTest, ThePromptsLogprobsComeOnceAndBeforeAnyTokenOfItsCopies) {
  EngineOptions options;
  options.limits.max_scored_rows = 8;
  auto engine = FakeEngine(400, options);
  const auto prompt = RandomIds(3, 60, engine->plan().vocab_size);
  for (const int max_new_tokens : {0, 5}) {
    std::vector<float> scores;
    std::promise<void> all_done;
    int num_done = 0;
    SequenceSpec spec = Spec(prompt, max_new_tokens);
    spec.num_prompt_logprobs = 1;
    const auto ids = engine->Submit(spec, 3, [&](RequestEvent event) {
      for (const SampledToken& score : event.prompt_logprobs) scores.push_back(score.logprob);
      if (!event.tokens.empty()) {
        EXPECT_EQ(scores.size(), 59u);
      }
      if (event.finish) {
        EXPECT_EQ(event.usage.output_tokens, max_new_tokens);
      }
      if (event.finish && ++num_done == 3) all_done.set_value();
    });
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    all_done.get_future().wait();
    EXPECT_EQ(scores, FakeExecutor::Scores(prompt));
  }
}

// Claims fewer pages, once the engine has sized its pool, than the pool hands out.
class ShrinkingExecutor : public FakeExecutor {
 public:
  using FakeExecutor::FakeExecutor;
  int num_pages() const override { return is_shrunk ? 8 : FakeExecutor::num_pages(); }
  std::atomic<bool> is_shrunk{false};
};

TEST(EngineTest, AKvViolationFailsItsStepWithAReportAndServingGoesOn) {
  const ModelPlan plan = PresetPlan("tiny-e");
  const auto report = std::filesystem::temp_directory_path() /
                      ("lapidary-kv-report-" + std::to_string(getpid()) + ".json");
  EngineOptions options;
  options.check_kv = true;
  options.check_kv_report = report;
  options.limits.prefix_caching = false;
  auto executor =
      std::make_unique<ShrinkingExecutor>(plan, MakeKvLayout(plan, KvFormat::kF32, {4, 8}), 200);
  ShrinkingExecutor* shrinking = executor.get();
  Engine engine(std::move(executor), options);
  shrinking->is_shrunk = true;

  Collector broken;
  ASSERT_TRUE(engine.Submit(Spec(RandomIds(1, 100, 500), 4), broken.sink()).ok());
  const Answer failed = broken.Wait();
  EXPECT_EQ(failed.final_event.finish, FinishReason::kError);
  EXPECT_FALSE(failed.final_event.error.empty());
  std::ifstream file(report);
  const Json json = Json::parse(file);
  EXPECT_EQ(json["problem"], "page outside the pool");
  for (const char* key : {"sequence", "layer", "group", "pages", "num_cached", "num_rows"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  std::filesystem::remove(report);

  shrinking->is_shrunk = false;
  Collector sound;
  const std::vector<int32_t> prompt = {1, 2, 3};
  ASSERT_TRUE(engine.Submit(Spec(prompt, 5), sound.sink()).ok());
  EXPECT_EQ(sound.Wait().tokens, FakeExecutor::Continuation(prompt, 5, plan.vocab_size));
}

// Fails like a lost device on its second step.
class FailingExecutor : public FakeExecutor {
 public:
  using FakeExecutor::FakeExecutor;
  StepOutput Collect() override {
    if (++num_steps_ >= 2) throw std::runtime_error("the device is gone");
    return FakeExecutor::Collect();
  }

 private:
  int num_steps_ = 0;
};

TEST(EngineTest, AFailedDeviceEndsEveryRequestWithItsError) {
  const ModelPlan plan = PresetPlan("tiny-e");
  Collector first;
  Collector late;
  Engine engine(
      std::make_unique<FailingExecutor>(plan, MakeKvLayout(plan, KvFormat::kF32, {4, 8}), 200), {});
  ASSERT_TRUE(engine.Submit(Spec({1, 2, 3}, 50), first.sink()).ok());
  EXPECT_EQ(first.Wait().final_event.error, "the device is gone");
  EXPECT_TRUE(engine.has_failed());
  ASSERT_TRUE(engine.Submit(Spec({1, 2, 3}, 50), late.sink()).ok());
  EXPECT_EQ(late.Wait().final_event.finish, FinishReason::kError);
}

// Steps run out of memory now and then, and leave nothing of what they were to compute.
class StarvedExecutor : public FakeExecutor {
 public:
  using FakeExecutor::FakeExecutor;
  void Submit(StepBatch batch) override {
    if (++num_steps_ % 7 == 0) is_starved_ = true;
    ++num_uncollected_;
    if (!is_starved_) FakeExecutor::Submit(std::move(batch));
  }
  StepOutput Collect() override {
    --num_uncollected_;
    if (is_starved_ && num_submitted() == 0) {
      if (num_uncollected_ == 0) is_starved_ = false;
      throw std::bad_alloc();
    }
    return FakeExecutor::Collect();
  }

 private:
  int num_steps_ = 0;
  int num_uncollected_ = 0;
  bool is_starved_ = false;
};

// There is no memory to queue a step now and then.
class FullExecutor : public FakeExecutor {
 public:
  using FakeExecutor::FakeExecutor;
  void Submit(StepBatch batch) override {
    if (++num_steps_ % 7 == 0) throw std::bad_alloc();
    FakeExecutor::Submit(std::move(batch));
  }

 private:
  int num_steps_ = 0;
};

template <typename ExecutorWithoutMemory>
class EngineWithoutMemoryTest : public testing::Test {};
using ExecutorsWithoutMemory = testing::Types<StarvedExecutor, FullExecutor>;
TYPED_TEST_SUITE(EngineWithoutMemoryTest, ExecutorsWithoutMemory);

TYPED_TEST(EngineWithoutMemoryTest, EndsRequestsAndServingGoesOn) {
  const ModelPlan plan = PresetPlan("tiny-e");
  for (const bool overlap : {false, true}) {
    EngineOptions options;
    options.overlap = overlap;
    options.limits.max_num_seqs = 4;
    options.check_kv = true;
    Engine engine(
        std::make_unique<TypeParam>(plan, MakeKvLayout(plan, KvFormat::kF32, {4, 8}), 400),
        options);
    std::deque<Collector> collectors(60);
    std::vector<std::vector<int32_t>> prompts;
    for (int idx = 0; idx < std::ssize(collectors); ++idx) {
      // Prompts that share their beginnings, so that snapshots are resumed from.
      prompts.push_back(RandomIds(3, 10 + idx % 20, plan.vocab_size));
      ASSERT_TRUE(engine.Submit(Spec(prompts.back(), 1 + idx % 9), collectors[idx].sink()).ok());
      // Not all at once: those that end together are not all there are.
      if (idx % 6 == 5) collectors[idx].Wait();
    }
    int num_whole = 0;
    for (int idx = 0; idx < std::ssize(collectors); ++idx) {
      const Answer answer = collectors[idx].Wait();
      const int num_tokens = static_cast<int>(answer.tokens.size());
      EXPECT_EQ(answer.tokens,
                FakeExecutor::Continuation(prompts[idx], num_tokens, plan.vocab_size));
      if (answer.final_event.finish == FinishReason::kLength) {
        EXPECT_EQ(num_tokens, 1 + idx % 9);
        ++num_whole;
      } else {
        EXPECT_NE(answer.final_event.error.find("no memory"), std::string::npos);
        EXPECT_EQ(answer.final_event.error_kind, ErrorKind::kBusy);
      }
    }
    EXPECT_FALSE(engine.has_failed());
    EXPECT_GT(num_whole, 5);
    EXPECT_LT(num_whole, 60);
    EXPECT_EQ(engine.stats().scheduler.num_running, 0);
  }
}

// The real executor: the same tokens, bit for bit, however the engine arranges the work.
class EngineExactnessTest : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int kNumRequests = 6;
  static constexpr int kNumTokens = 24;

  EngineExactnessTest() : plan_(PresetPlan(GetParam())) {
    ThreadPool threads(2);
    source_ = DummySource::Make(plan_, /*seed=*/5, threads).value();
  }

  std::unique_ptr<Engine> MakeEngine(const EngineOptions& options, int num_pages) const {
    cpu::CpuExecutorOptions executor_options;
    executor_options.num_threads = 2;
    executor_options.num_pages = num_pages;
    executor_options.kv_layout = MakeKvLayout(plan_, KvFormat::kF32, {4, 8});
    return std::make_unique<Engine>(
        cpu::CpuExecutor::Create(plan_, source_, executor_options).value(), options);
  }

  // Half greedy, half sampled with penalties and a seed of their own.
  SequenceSpec RequestSpec(int idx) const {
    SamplingParams sampling;
    if (idx % 2 == 0) {
      sampling.temperature = 0.0f;
    } else {
      sampling.temperature = 1.3f;
      sampling.top_k = 40;
      sampling.top_p = 0.95f;
      sampling.repetition_penalty = 1.1f;
      sampling.seed = 1000 + idx;
    }
    // Prompts share a beginning, so that some can resume from others.
    std::vector<int32_t> prompt = RandomIds(1, 40, plan_.vocab_size);
    const auto tail = RandomIds(100 + idx, 5 + 7 * idx, plan_.vocab_size);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    SequenceSpec spec = Spec(std::move(prompt), kNumTokens, sampling);
    spec.cache_points.insert(spec.cache_points.begin(), 40);
    return spec;
  }

  std::vector<std::vector<int32_t>> RunTogether(Engine& engine) const {
    std::deque<Collector> collectors(kNumRequests);
    for (int idx = 0; idx < kNumRequests; ++idx) {
      CHECK(engine.Submit(RequestSpec(idx), collectors[idx].sink()).ok());
    }
    std::vector<std::vector<int32_t>> answers;
    for (Collector& collector : collectors) {
      const Answer answer = collector.Wait();
      EXPECT_EQ(answer.final_event.finish, FinishReason::kLength) << answer.final_event.error;
      answers.push_back(answer.tokens);
    }
    return answers;
  }

  const ModelPlan plan_;
  std::shared_ptr<const TensorSource> source_;
};

TEST_P(EngineExactnessTest, AloneBatchedChunkedCachedPreemptedAndOverlappedAreTheSame) {
  // Alone, without any caching, planned plainly.
  std::vector<std::vector<int32_t>> alone;
  for (int idx = 0; idx < kNumRequests; ++idx) {
    EngineOptions options;
    options.overlap = false;
    options.limits.prefix_caching = false;
    auto engine = MakeEngine(options, 300);
    Collector collector;
    ASSERT_TRUE(engine->Submit(RequestSpec(idx), collector.sink()).ok());
    alone.push_back(collector.Wait().tokens);
  }
  for (const bool overlap : {false, true}) {
    EngineOptions options;
    options.overlap = overlap;
    options.check_kv = true;
    auto engine = MakeEngine(options, 600);
    EXPECT_EQ(RunTogether(*engine), alone) << "batched, overlap " << overlap;
    EXPECT_EQ(RunTogether(*engine), alone) << "cached, overlap " << overlap;
    EXPECT_GT(engine->stats().scheduler.num_prefix_hit_tokens, 0u);

    options.limits.max_num_batched_tokens = 9;
    EXPECT_EQ(RunTogether(*MakeEngine(options, 600)), alone) << "chunked, overlap " << overlap;

    // A pool for little more than the longest sequence.
    auto tight = MakeEngine(options, 50);
    EXPECT_EQ(RunTogether(*tight), alone) << "tight pool, overlap " << overlap;
    EXPECT_GT(tight->stats().scheduler.num_preemptions, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineExactnessTest,
                         testing::Values("tiny-e", "tiny-moe", "tiny-dense"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CheckKvTest, ASoundStepPassesAndEachKindOfDamageIsNamed) {
  const ModelPlan plan = PresetPlan("tiny-e");
  const KvLayout layout = MakeKvLayout(plan, KvFormat::kF32, {4, 8});
  const auto make_batch = [&] {
    StepBatch batch;
    SequenceStep step;
    step.num_cached = 16;
    step.num_rows = 2;
    step.num_outputs = 1;
    for (int32_t block = 0; block < 5; ++block) {
      batch.table_entries.push_back({0, kSlidingGroup, block, 1 + block});
    }
    for (int32_t block = 0; block < 3; ++block) {
      batch.table_entries.push_back({0, kFullGroup, block, 6 + block});
    }
    batch.sequences = {step};
    batch.token_ids = {1, 2};
    return batch;
  };
  const auto find = [&](const StepBatch& batch) {
    return KvChecker(plan, layout).FindViolation(batch, /*num_pages=*/20);
  };
  const auto damage = [&](int group_idx, int32_t block, PageIndex page) {
    StepBatch batch = make_batch();
    batch.table_entries.push_back({0, group_idx, block, page});
    return find(batch);
  };
  EXPECT_FALSE(find(make_batch()).has_value());
  EXPECT_EQ((*damage(kFullGroup, 1, 20))["problem"], "page outside the pool");
  EXPECT_EQ((*damage(kFullGroup, 1, -3))["problem"], "page outside the pool");
  EXPECT_EQ((*damage(kFullGroup, 0, kScratchPage))["problem"], "a block that is read has no page");
  EXPECT_EQ((*damage(kFullGroup, 2, kScratchPage))["problem"],
            "a block that is written has no page");
  StepBatch twice = make_batch();
  twice.sequences.push_back(twice.sequences[0]);
  twice.sequences[1].slot = 1;
  for (PageTableEntry entry : make_batch().table_entries) {
    entry.slot = 1;
    twice.table_entries.push_back(entry);
  }
  twice.token_ids = {1, 2, 3, 4};
  EXPECT_EQ((*find(twice))["problem"], "a page is written by two sequences");
  // The first page of one is what the other writes.
  StepBatch foreign = twice;
  for (PageTableEntry& entry : foreign.table_entries) {
    if (entry.slot == 1) entry.page += 9;
  }
  EXPECT_FALSE(find(foreign).has_value());
  foreign.table_entries.push_back({1, kFullGroup, 0, 8});
  EXPECT_EQ((*find(foreign))["problem"], "a page is read that another sequence writes");
  // Where drafts are not settled yet, the shortest length counts too: the window begins earlier.
  StepBatch uncertain = make_batch();
  uncertain.sequences[0].num_cached = 40;
  uncertain.sequences[0].num_uncertain = 30;
  EXPECT_EQ((*find(uncertain))["problem"], "a block that is read has no page");
  StepBatch stale = make_batch();
  stale.bindings.push_back({.slot = 0});
  stale.table_entries.clear();
  KvChecker checker(plan, layout);
  EXPECT_FALSE(checker.FindViolation(make_batch(), 20).has_value());
  EXPECT_EQ((*checker.FindViolation(stale, 20))["problem"], "a block that is read has no page");
  const Json report = *damage(kFullGroup, 1, 20);
  EXPECT_EQ(report["group"], "full");
  EXPECT_EQ(report["num_cached"], 16);
}

}  // namespace
}  // namespace lapidary
