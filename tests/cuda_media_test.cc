// Pictures and sounds on the CUDA executor: their rows among those of text, images that see
// themselves both ways, against the CPU executor and against itself in every mode.
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <random>

#include "engine/engine.h"
#include "engine/single_sequence.h"
#include "executor/cpu/cpu_executor.h"
#include "executor/cuda/cuda_executor.h"
#include "model/tensor_sources.h"
#include "ops/cuda/test_buffer.h"
#include "tests/step_testing.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr int kPromptLen = 150;

class CudaMediaTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    LAPIDARY_SKIP_WITHOUT_GPU();
    plan_ = MakeModelPlan(ParseModelConfig(TestConfig(GetParam()), GetParam()).value()).value();
    plan_.media_tokens = MediaTokens{.pad = 3};
    plan_.images_see_both_ways = !plan_.ple;  // as the models do
    ThreadPool threads(2);
    source_ = DummySource::Make(plan_, /*seed=*/3, threads).value();
  }

  // Rows as large as those of tokens.
  SoftTokenRun Run(int32_t position, int32_t length, bool is_image, int seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    auto rows = std::make_shared<std::vector<float>>(int64_t{length} * plan_.hidden_size);
    for (float& value : *rows) value = normal(random);
    return {.position = position, .length = length, .is_image = is_image, .rows = rows};
  }
  // Text, an image longer than the window, text, a sound, an image at the end.
  std::shared_ptr<const SoftTokenRuns> Media(int seed = 1) const {
    return std::make_shared<SoftTokenRuns>(SoftTokenRuns{
        Run(6, 70, true, seed), Run(80, 23, false, seed + 1), Run(110, 40, true, seed + 2)});
  }

  std::unique_ptr<cuda::CudaExecutor> MakeExecutor(cuda::CudaExecutorOptions options = {}) const {
    options.num_pages = options.num_pages.value_or(400);
    options.max_num_seqs = 16;
    options.max_num_batched_tokens = 256;
    options.kv_layout = MakeKvLayout(plan_, KvFormat::kBF16, {16, 64});
    auto executor = cuda::CudaExecutor::Create(plan_, source_.get(), options);
    CHECK(executor.ok()) << executor.error().message;
    (*executor)->PoisonPoolForTest();
    return std::move(executor).value();
  }
  Logits RunOn(Executor& executor, int32_t chunk_rows,
               std::shared_ptr<const SoftTokenRuns> media) const {
    SingleSequence sequence(executor, chunk_rows, nullptr, 0, std::move(media));
    Logits logits;
    const Status status = sequence.Append(RandomTokens(plan_, 5, kPromptLen),
                                          [&](std::span<const float> rows) -> Status {
                                            logits.insert(logits.end(), rows.begin(), rows.end());
                                            return {};
                                          });
    CHECK(status.ok()) << status.error().message;
    return logits;
  }
  Logits OnCpu(std::shared_ptr<const SoftTokenRuns> media, bool both_ways) const {
    ModelPlan plan = plan_;
    plan.images_see_both_ways = both_ways;
    cpu::CpuExecutorOptions options;
    options.num_pages = 400;
    auto executor = cpu::CpuExecutor::Create(plan, source_, options).value();
    return RunOn(*executor, 512, std::move(media));
  }

  // |a - b| / |b| of the median row.
  double MedianRowError(const Logits& actual, const Logits& expected) const {
    CHECK_EQ(actual.size(), expected.size());
    std::vector<double> errors;
    for (size_t at = 0; at < actual.size(); at += plan_.vocab_size) {
      double error = 0.0;
      double norm = 0.0;
      for (int idx = 0; idx < plan_.vocab_size; ++idx) {
        error += std::pow(double{actual[at + idx]} - expected[at + idx], 2);
        norm += std::pow(double{expected[at + idx]}, 2);
      }
      errors.push_back(std::sqrt(error / norm));
      EXPECT_TRUE(std::isfinite(errors.back())) << "row " << at / plan_.vocab_size;
    }
    std::nth_element(errors.begin(), errors.begin() + errors.size() / 2, errors.end());
    return errors[errors.size() / 2];
  }

  // Answers to prompts with these media, all at once.
  std::vector<std::vector<int32_t>> Answers(
      Engine& engine, const std::vector<std::shared_ptr<const SoftTokenRuns>>& media,
      int num_copies) const {
    std::vector<std::future<std::vector<int32_t>>> answers;
    for (size_t idx = 0; idx < media.size(); ++idx) {
      SequenceSpec spec;
      spec.prompt = RandomTokens(plan_, 5, kPromptLen);
      spec.max_new_tokens = 12;
      spec.sampling = std::make_shared<SamplingParams>(SamplingParams{.temperature = 0.0f});
      spec.media = media[idx];
      for (const SoftTokenRun& run : *media[idx]) {
        spec.identity.media.push_back({.position = run.position, .low = idx + 1});
      }
      // One of them inside an image: nothing may be resumed there.
      spec.cache_points = {20, 100};
      struct Pending {
        std::promise<std::vector<int32_t>> done;
        std::map<RequestId, std::vector<int32_t>> tokens;
        int num_left = 0;
      };
      auto pending = std::make_shared<Pending>();
      pending->num_left = num_copies;
      answers.push_back(pending->done.get_future());
      const auto ids = engine.Submit(std::move(spec), num_copies, [pending](RequestEvent event) {
        std::vector<int32_t>& tokens = pending->tokens[event.id];
        for (const SampledToken& token : event.tokens) tokens.push_back(token.id);
        if (!event.finish || --pending->num_left > 0) return;
        std::vector<int32_t> all;
        for (const auto& [id, own] : pending->tokens) {
          if (own != tokens) all.push_back(-1);  // Greedy: the copies are alike.
        }
        all.insert(all.end(), tokens.begin(), tokens.end());
        pending->done.set_value(std::move(all));
      });
      CHECK(ids.ok()) << ids.error().message;
    }
    std::vector<std::vector<int32_t>> tokens;
    for (auto& answer : answers) tokens.push_back(answer.get());
    return tokens;
  }

  ModelPlan plan_;
  std::shared_ptr<const TensorSource> source_;
};

TEST_P(CudaMediaTest, LogitsAreTheCpuExecutorsInChunksOfAnySize) {
  const auto media = Media();
  const Logits expected = OnCpu(media, plan_.images_see_both_ways);
  const double rounding =
      MedianRowError(RunOn(*MakeExecutor(), 256, nullptr), OnCpu(nullptr, true));
  for (const int32_t chunk_rows : {256, 31, 1}) {
    const double error = MedianRowError(RunOn(*MakeExecutor(), chunk_rows, media), expected);
    std::printf("%s in chunks of %d: median row error %.5f, %.5f of text\n", GetParam().c_str(),
                chunk_rows, error, rounding);
    EXPECT_LT(error, 2.0 * rounding) << "chunks of " << chunk_rows;
  }
  // Another picture, or one that is seen one way only, would show.
  EXPECT_GT(MedianRowError(OnCpu(Media(9), plan_.images_see_both_ways), expected), 4.0 * rounding);
  EXPECT_GT(MedianRowError(OnCpu(media, !plan_.images_see_both_ways), expected), 4.0 * rounding);
}

TEST_P(CudaMediaTest, BatchInvariantModeGivesTheSameBitsInEveryChunking) {
  const auto media = Media();
  const cuda::CudaExecutorOptions invariant{.batch_invariant = true};
  const Logits whole = RunOn(*MakeExecutor(invariant), 256, media);
  for (const int32_t chunk_rows : {64, 17, 1}) {
    ExpectSameBits(plan_, whole, RunOn(*MakeExecutor(invariant), chunk_rows, media),
                   "chunks of " + std::to_string(chunk_rows));
  }
}

TEST_P(CudaMediaTest, AnswersAreTheSameAloneTogetherCachedAndPreempted) {
  std::vector<std::shared_ptr<const SoftTokenRuns>> media;
  for (int seed = 0; seed < 5; ++seed) media.push_back(Media(10 * seed));
  std::vector<std::vector<int32_t>> alone;
  for (const auto& own : media) {
    Engine engine(MakeExecutor({.batch_invariant = true}), {});
    alone.push_back(Answers(engine, {own}, 1)[0]);
  }
  EXPECT_NE(alone[0], alone[1]);
  EngineOptions options;
  options.limits.max_num_batched_tokens = 48;  // less than an image
  for (const int num_pages : {400, 40}) {
    Engine engine(MakeExecutor({.num_pages = num_pages, .batch_invariant = true}), options);
    // Twice: the second time prefixes come from the cache.
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(Answers(engine, media, /*num_copies=*/2), alone)
          << num_pages << " pages, round " << round;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaMediaTest, testing::Values("tiny-e", "tiny-moe", "tiny-dense"),
                         ModelTestName);

}  // namespace
}  // namespace lapidary
